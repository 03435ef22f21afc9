"""Bodies of /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from foreword.gateway.protocol.common import MAX_LOGPROBS, Choices, Count, SamplingFields, StreamOptions, TokenId


class CompletionRequest(SamplingFields, kw_only=True):
    """Text, ids, or lists of either to go on from."""

    prompt: str | list[str | TokenId | list[TokenId]]
    max_tokens: Count | None = None
    n: Choices | None = None
    stop: str | list[str] | None = None
    stream_options: StreamOptions | None = None
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    add_special_tokens: bool = True
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None
    response_format: dict[str, Any] | None = None
