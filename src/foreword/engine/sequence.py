"""One request while the engine works on it."""

from __future__ import annotations

from dataclasses import dataclass

from foreword.core.cache_request import CacheRequest
from foreword.engine.sampling import Sampler
from foreword.generation import FinishReason, GenerateRequest


@dataclass(slots=True, eq=False)
class Sequence:
    """A request, its state in the prefix cache, and when it ends.

    Attributes:
        cache: its tokens (prompt and generated), block hashes and block table; the engine appends tokens, the prefix
            cache does the rest.
        max_length: tokens in all, prompt included, at which the request ends.
        stop_token_ids: end-of-sequence and stop tokens that end it sooner.
        num_cached_tokens: prompt tokens whose prefill was skipped when its first token was computed; None before.
        num_saved_blocks: first blocks of it that need not be offered to the disk tier any more.
    """

    request: GenerateRequest
    cache: CacheRequest
    max_length: int
    stop_token_ids: frozenset[int]
    sampler: Sampler
    num_prompt_tokens: int = 0
    num_cached_tokens: int | None = None
    num_saved_blocks: int = 0

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.cache.token_ids)

    @property
    def request_id(self) -> str:
        """Of the request."""
        return self.request.request_id

    @property
    def token_ids(self) -> list[int]:
        """The prompt's, then the generated ones."""
        return self.cache.token_ids

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens without keys and values yet."""
        return len(self.cache.token_ids) - self.cache.num_computed_tokens

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.cache.token_ids) - self.num_prompt_tokens

    @property
    def is_decoding(self) -> bool:
        """Whether only the token generated last is left to compute."""
        return self.num_uncomputed_tokens == 1 and self.num_output_tokens > 0

    def finish_reason(self) -> FinishReason | None:
        """Why the request ends with the token just appended, if it does."""
        enough = self.num_output_tokens >= self.request.sampling.min_tokens
        if enough and self.token_ids[-1] in self.stop_token_ids:
            return "stop"
        return "length" if len(self.token_ids) >= self.max_length else None
