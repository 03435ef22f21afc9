"""Items of the Responses API: those of a request as messages, and an answer as items."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from foreword.gateway.chat_output import ChatChoice
from foreword.gateway.errors import Refusal, unsupported
from foreword.gateway.protocol.chat import FunctionCall, Message, Tool, ToolCall
from foreword.gateway.protocol.responses import ResponsesRequest
from foreword.gateway.tool_calls import ParsedCall

Json = dict[str, Any]


def request_messages(request: ResponsesRequest) -> list[Message]:
    """Instructions and input as the messages of a chat; raises Refusal naming the item at fault."""
    messages = [Message(role="system", content=request.instructions)] if request.instructions else []
    if isinstance(request.input, str):
        return [*messages, Message(role="user", content=request.input)]
    if not request.input:
        raise Refusal("'input' is empty.", param="input", code="invalid_value")
    for index, item in enumerate(request.input):
        _add_item(messages, item, f"input[{index}]")
    return messages


def _add_item(messages: list[Message], item: Json, place: str) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        messages.append(_convert({"role": item.get("role"), "content": item.get("content")}, Message, place))
    elif kind == "function_call":
        _add_call(messages, item, place)
    elif kind == "function_call_output":
        _require(item, ("call_id", "output"), place)
        output = item["output"]
        text = output if isinstance(output, str | list) else json.dumps(output)
        fields = {"role": "tool", "content": text, "tool_call_id": item["call_id"]}
        messages.append(_convert(fields, Message, place))
    elif kind != "reasoning":  # earlier reasoning is not shown to the model again
        message = f"{place} has the type {str(kind)[:50]!r}, which is not supported."
        raise Refusal(message, param=place, code="unsupported_value")


def _require(item: Json, fields: tuple[str, ...], place: str) -> None:
    missing = next((field for field in fields if item.get(field) is None), None)
    if missing is not None:
        name = f"{place}.{missing}"
        raise Refusal(f"The field {name!r} is required.", param=name, code="missing_required_parameter")


def _add_call(messages: list[Message], item: Json, place: str) -> None:
    """Calls that follow one another, or an assistant's text, belong to one message."""
    function = _convert({"name": item.get("name"), "arguments": item.get("arguments", "")}, FunctionCall, place)
    call = ToolCall(id=str(item.get("call_id", "")), function=function)
    last = messages[-1] if messages else None
    if last is not None and last.role == "assistant":
        last.tool_calls = [*(last.tool_calls or []), call]
    else:
        messages.append(Message(role="assistant", content="", tool_calls=[call]))


def request_tools(request: ResponsesRequest) -> list[Tool]:
    """The function tools of a request; raises Refusal for the hosted kinds."""
    tools: list[Tool] = []
    for index, tool in enumerate(request.tools or ()):
        if tool.get("type") != "function":
            raise unsupported(f"tools[{index}]", f"the type {str(tool.get('type'))[:50]!r} is not run here.")
        tools.append(_convert({"function": tool}, Tool, f"tools[{index}]"))
    return tools


def _convert(value: Json, kind: Any, place: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise Refusal(f"{place} is wrong: {str(error).replace('`', '')}.", param=place, code="invalid_value") from None


def output_items(choice: ChatChoice, stem: str) -> list[Json]:
    """A finished answer as items: reasoning, message, calls, each where there is one; never none at all."""
    items: list[Json] = []
    if choice.reasoning:
        items.append(reasoning_item(f"rs_{stem}", choice.reasoning))
    if choice.content or not choice.calls:
        items.append(message_item(f"msg_{stem}", choice.content))
    return items + [call_item(call) for call in choice.calls]


def reasoning_item(item_id: str, text: str | None) -> Json:
    """A reasoning item; None for one that has only begun."""
    content = [] if text is None else [{"type": "reasoning_text", "text": text}]
    return {"id": item_id, "type": "reasoning", "summary": [], "content": content, "status": _status(text)}


def message_item(item_id: str, text: str | None) -> Json:
    """An assistant's message; None for one that has only begun."""
    content = [] if text is None else [text_part(text)]
    return {"id": item_id, "type": "message", "role": "assistant", "status": _status(text), "content": content}


def text_part(text: str) -> Json:
    """The text part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def call_item(call: ParsedCall) -> Json:
    """A function call."""
    return {
        "id": f"fc_{call.id.removeprefix('call_')}",
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": "completed",
    }


def _status(text: str | None) -> str:
    return "in_progress" if text is None else "completed"
