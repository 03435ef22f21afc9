"""One request while the engine works on it."""

from __future__ import annotations

from dataclasses import dataclass, field

from foreword.engine.sampling import Sampler
from foreword.generation import FinishReason, GenerateRequest


@dataclass(slots=True, eq=False)
class Sequence:
    """Prompt and generated tokens, how far their keys and values are computed, and the blocks these lie in.

    The scheduler owns ``block_table`` and ``num_computed_tokens``; the engine appends to ``token_ids``.

    Attributes:
        token_ids: the prompt's, then the generated ones.
        max_length: tokens in all, prompt included, at which the request ends.
        stop_token_ids: end-of-sequence and stop tokens that end it sooner.
        num_cached_tokens: prompt tokens whose prefill was skipped.
    """

    request: GenerateRequest
    token_ids: list[int]
    max_length: int
    stop_token_ids: frozenset[int]
    sampler: Sampler
    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    block_table: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.token_ids)

    @property
    def request_id(self) -> str:
        """Of the request."""
        return self.request.request_id

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    def finish_reason(self) -> FinishReason | None:
        """Why the request ends with the token just appended, if it does."""
        enough = self.num_output_tokens >= self.request.sampling.min_tokens
        if enough and self.token_ids[-1] in self.stop_token_ids:
            return "stop"
        return "length" if len(self.token_ids) >= self.max_length else None
