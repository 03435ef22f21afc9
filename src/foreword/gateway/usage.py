"""Usage: how many tokens a request read, how many of them from a cache, and how many it wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foreword.gateway.generate import Generation


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a whole request."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0

    @classmethod
    def of(cls, generations: Sequence[Generation], *, samples: int = 1, reasoning_tokens: int = 0) -> Usage:
        """The sum over generations; each prompt counts once, however many samples were drawn of it."""
        prompts = generations[::samples]
        return cls(
            sum(generation.prompt_tokens for generation in prompts),
            sum(generation.reported_cached_tokens for generation in prompts),
            sum(generation.completion_tokens for generation in generations),
            reasoning_tokens,
        )

    def as_completion(self) -> dict[str, Any]:
        """The ``usage`` of chat and text completions."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }

    def as_response(self) -> dict[str, Any]:
        """The ``usage`` of /v1/responses."""
        return {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }
