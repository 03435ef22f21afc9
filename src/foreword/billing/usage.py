"""Token usage as providers report it, in one shape. A field that is absent is None: not reported is not zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Usage:
    """Prompt-side usage of one request, in tokens.

    Attributes:
        input_tokens: the whole prompt, cached or not.
        cached_tokens: read from the cache.
        cache_write_tokens: written to the cache.
        output_tokens: generated.
        source: the field the cached count came from, or "".
    """

    input_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None
    source: str = ""


_CACHED = (
    ("prompt_tokens_details", "cached_tokens"),
    ("input_tokens_details", "cached_tokens"),
    ("cache_read_input_tokens",),
    ("cacheReadInputTokens",),
    ("cachedContentTokenCount",),
    ("prompt_cache_hit_tokens",),
    ("cached_tokens",),
)
_WRITTEN = (
    ("cache_creation_input_tokens",),
    ("cacheWriteInputTokens",),
    ("prompt_tokens_details", "cache_write_tokens"),
    ("input_tokens_details", "cache_write_tokens"),
    ("cache_write_tokens",),
)
_INPUT = (("prompt_tokens",), ("input_tokens",), ("inputTokens",), ("promptTokenCount",))
_OUTPUT = (("completion_tokens",), ("output_tokens",), ("outputTokens",), ("candidatesTokenCount",))


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """The usage object of any known API; Anthropic's and Bedrock's input is net of the cache and is added up here."""
    source, cached = _first(usage, _CACHED)
    _, written = _first(usage, _WRITTEN)
    _, total = _first(usage, _INPUT)
    if total is not None and source in {"cache_read_input_tokens", "cacheReadInputTokens"}:
        total += (cached or 0) + (written or 0)
    return Usage(total, cached, written, _first(usage, _OUTPUT)[1], source)


def _first(usage: Mapping[str, Any], paths: tuple[tuple[str, ...], ...]) -> tuple[str, int | None]:
    for path in paths:
        value: Any = usage
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, int) and not isinstance(value, bool):
            return ".".join(path), value
    return "", None
