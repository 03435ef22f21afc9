"""Bodies of /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from foreword.gateway.protocol.common import MAX_LOGPROBS, Count, SamplingFields


class ResponsesRequest(SamplingFields, kw_only=True):
    """Input to respond to: a text, or items (messages, tool calls, tool outputs) of the turns so far."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    truncation: str | None = None
    include: list[str] | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    prompt: Any = None
