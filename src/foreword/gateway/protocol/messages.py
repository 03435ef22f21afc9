"""Bodies of /v1/messages and /v1/messages/count_tokens, as Anthropic's API has them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from foreword.gateway.protocol.common import Count, SamplingFields

Ttl = Literal["5m", "1h"]


class CacheControl(msgspec.Struct, kw_only=True):
    """A cache breakpoint: keep the prompt up to here for so long after its last use."""

    type: Literal["ephemeral"]
    ttl: Ttl | None = None


class Block(msgspec.Struct, kw_only=True, tag_field="type"):
    """One piece of a message's content."""

    cache_control: CacheControl | None = None


class TextBlock(Block, tag="text"):
    """Text."""

    text: str


class ImageBlock(Block, tag="image"):
    """An image, which is refused."""


class DocumentBlock(Block, tag="document"):
    """A document, which is refused."""


class SearchResultBlock(Block, tag="search_result"):
    """A search result, which is refused."""


class ThinkingBlock(Block, tag="thinking"):
    """The model's reasoning in an earlier turn."""

    thinking: str = ""


class RedactedThinkingBlock(Block, tag="redacted_thinking"):
    """Reasoning that cannot be read; it is left out."""


class ToolUseBlock(Block, tag="tool_use"):
    """A call the model made."""

    id: str
    name: str
    input: dict[str, Any] = msgspec.field(default_factory=dict)


ResultPart = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock


class ToolResultBlock(Block, tag="tool_result"):
    """What a call gave."""

    tool_use_id: str
    content: str | list[ResultPart] | None = None
    is_error: bool | None = None


ContentBlock = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
)


class InputMessage(msgspec.Struct, kw_only=True):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]


class InputTool(msgspec.Struct, kw_only=True):
    """A tool the model may call; those that Anthropic itself runs are refused."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    cache_control: CacheControl | None = None


class Thinking(msgspec.Struct, kw_only=True):
    """Whether the model is to reason first."""

    type: str
    budget_tokens: int | None = None


class CountRequest(SamplingFields, kw_only=True):
    """A prompt whose tokens are to be counted."""

    messages: list[InputMessage]
    system: str | list[TextBlock] | None = None
    tools: list[InputTool] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: Thinking | None = None
    cache_control: CacheControl | None = None
    output_config: dict[str, Any] | None = None
    mcp_servers: list[Any] | None = None
    container: Any = None
    context_management: Any = None


class MessagesRequest(CountRequest, kw_only=True):
    """A prompt to answer. ``max_tokens`` is required, as at Anthropic."""

    max_tokens: Count
    stop_sequences: list[str] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
