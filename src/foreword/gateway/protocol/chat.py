"""Bodies of /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from foreword.gateway.protocol.common import MAX_LOGPROBS, Choices, Count, SamplingFields, StreamOptions


class FunctionCall(msgspec.Struct):
    """A call in an earlier assistant turn; ``arguments`` is JSON text."""

    name: str
    arguments: str | dict[str, Any] = ""


class ToolCall(msgspec.Struct, kw_only=True):
    """One tool call in an earlier assistant turn."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One message; which roles there are is the template's to say."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class Function(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a tool is called, does and takes."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    """A tool the model may call."""

    type: Literal["function"] = "function"
    function: Function


class ChatRequest(SamplingFields, kw_only=True):
    """A conversation to continue."""

    messages: list[Message]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    n: Choices | None = None
    stop: str | list[str] | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    response_format: dict[str, Any] | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    audio: Any = None
    modalities: list[str] | None = None
    web_search_options: Any = None
