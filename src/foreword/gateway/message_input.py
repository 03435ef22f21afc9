"""A request of Anthropic's API as messages and tools of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreword.gateway.errors import Refusal, unsupported
from foreword.gateway.protocol.chat import Function, FunctionCall, Message, Tool, ToolCall
from foreword.gateway.protocol.messages import (
    ContentBlock,
    CountRequest,
    InputMessage,
    InputTool,
    RedactedThinkingBlock,
    ResultPart,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)

Part = dict[str, Any]


def chat_messages(request: CountRequest) -> list[Message]:
    """System and turns as the messages of a chat; raises Refusal naming the block at fault."""
    messages = _system(request.system)
    for index, turn in enumerate(request.messages):
        messages += _turn(turn, f"messages[{index}]")
    return messages


def _system(system: str | Sequence[TextBlock] | None) -> list[Message]:
    if not system:
        return []
    content = system if isinstance(system, str) else [_text_part(block.text) for block in system]
    return [Message(role="system", content=content)]


def _turn(turn: InputMessage, place: str) -> list[Message]:
    if isinstance(turn.content, str):
        return [Message(role=turn.role, content=turn.content)]
    if turn.role == "assistant":
        return [_assistant(turn.content, place)]
    return _user(turn, turn.content, place)


def _user(turn: InputMessage, blocks: Sequence[ContentBlock], place: str) -> list[Message]:
    """Results of calls are messages of their own; texts that stand together are one."""
    messages: list[Message] = []
    texts: list[Part] = []
    for number, block in enumerate(blocks):
        if isinstance(block, ToolResultBlock):
            messages += _flush(turn, texts)
            messages.append(_tool_result(block, f"{place}.content[{number}]"))
        elif isinstance(block, TextBlock):
            texts.append(_text_part(block.text))
        else:
            raise _misplaced(block, f"{place}.content[{number}]", turn.role)
    return messages + _flush(turn, texts)


def _flush(turn: InputMessage, texts: list[Part]) -> list[Message]:
    """The texts gathered so far as a message, if there are any; the list is emptied."""
    messages = [Message(role=turn.role, content=list(texts))] if texts else []
    texts.clear()
    return messages


def _tool_result(block: ToolResultBlock, place: str) -> Message:
    content = block.content
    if not isinstance(content, str):
        content = "\n".join(_result_text(part, place) for part in content or ())
    return Message(role="tool", content=content, tool_call_id=block.tool_use_id)


def _result_text(part: ResultPart, place: str) -> str:
    if not isinstance(part, TextBlock):
        raise _misplaced(part, f"{place}.content", "tool_result")
    return part.text


def _assistant(blocks: Sequence[ContentBlock], place: str) -> Message:
    """One message: its texts, its reasoning, its calls."""
    texts: list[Part] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for number, block in enumerate(blocks):
        if isinstance(block, TextBlock):
            texts.append(_text_part(block.text))
        elif isinstance(block, ThinkingBlock):
            thoughts.append(block.thinking)
        elif isinstance(block, ToolUseBlock):
            calls.append(ToolCall(id=block.id, function=FunctionCall(block.name, block.input)))
        elif not isinstance(block, RedactedThinkingBlock):
            raise _misplaced(block, f"{place}.content[{number}]", "assistant")
    return Message(
        role="assistant", content=texts, tool_calls=calls or None, reasoning_content="\n".join(thoughts) or None
    )


def _text_part(text: str) -> Part:
    return {"type": "text", "text": text}


def _misplaced(block: object, place: str, where: str) -> Refusal:
    kind = getattr(type(block), "__struct_config__").tag  # noqa: B009 - every block is a tagged struct
    if isinstance(block, ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock):
        message = f"{place} has the type {kind!r}, which does not belong in {where!r} content."
        return Refusal(message, param=place, code="invalid_value")
    message = f"{place} has the type {kind!r}; this model takes text only."
    return Refusal(message, param=place, code="unsupported_content")


def chat_tools(tools: Sequence[InputTool] | None) -> list[Tool]:
    """The client's tools; raises Refusal for those that Anthropic runs."""
    for index, tool in enumerate(tools or ()):
        if tool.type not in (None, "custom"):
            raise unsupported(f"tools[{index}]", f"the type {str(tool.type)[:50]!r} is not run here.")
    return [
        Tool(function=Function(name=tool.name, description=tool.description, parameters=tool.input_schema))
        for tool in tools or ()
    ]
