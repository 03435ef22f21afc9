"""Answers of Anthropic's API: content blocks, and the events of a stream in the order that its SDKs expect."""

from __future__ import annotations

import json
from typing import Any, Literal

from foreword.gateway import sse
from foreword.gateway.chat_output import ChatChoice, ChatDelta
from foreword.gateway.errors import ApiError, anthropic_error
from foreword.gateway.tool_calls import ParsedCall

Json = dict[str, Any]
OpenBlock = Literal["", "thinking", "text", "tool_use"]

_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


def stop_fields(choice: ChatChoice) -> Json:
    """Why the answer ended, and by which stop sequence if by one."""
    sequence = choice.stop_reason if isinstance(choice.stop_reason, str) else None
    plain = "end_turn" if sequence is None else "stop_sequence"
    return {"stop_reason": _STOP_REASONS.get(choice.finish_reason or "", plain), "stop_sequence": sequence}


def content_blocks(choice: ChatChoice) -> list[Json]:
    """A finished answer: reasoning, text, calls, each where there is one."""
    blocks: list[Json] = []
    if choice.reasoning:
        blocks.append({"type": "thinking", "thinking": choice.reasoning, "signature": ""})
    if choice.content:
        blocks.append({"type": "text", "text": choice.content})
    return blocks + [{**_call_block(call), "input": _arguments(call)} for call in choice.calls]


def _call_block(call: ParsedCall) -> Json:
    return {"type": "tool_use", "id": f"toolu_{call.id.removeprefix('call_')}", "name": call.name, "input": {}}


def _arguments(call: ParsedCall) -> Json:
    """The call's input: an object, as the API promises, even when the model wrote none."""
    try:
        parsed = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return {"arguments": call.arguments}
    return parsed if isinstance(parsed, dict) else {"arguments": parsed}


class MessageEvents:
    """Opens, fills and closes content blocks, one at a time, and numbers them."""

    def __init__(self) -> None:
        self._index = -1
        self._open: OpenBlock = ""

    def begin(self, message: Json) -> bytes:
        """The first event."""
        return _event("message_start", message=message)

    def push(self, added: ChatDelta) -> bytes:
        """The events of what was added."""
        events = b""
        if added.reasoning:
            events += self._switch_to("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            events += self._delta({"type": "thinking_delta", "thinking": added.reasoning})
        if added.content:
            events += self._switch_to("text", {"type": "text", "text": ""})
            events += self._delta({"type": "text_delta", "text": added.content})
        return events + b"".join(map(self._call, added.calls))

    def end(self, stop: Json, usage: Json) -> bytes:
        """The last events."""
        return self._close() + _event("message_delta", delta=stop, usage=usage) + _event("message_stop")

    def _switch_to(self, kind: OpenBlock, block: Json) -> bytes:
        if self._open == kind:
            return b""
        return self._close() + self._start(kind, block)

    def _start(self, kind: OpenBlock, block: Json) -> bytes:
        self._open, self._index = kind, self._index + 1
        return _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: Json) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> bytes:
        if not self._open:
            return b""
        self._open = ""
        return _event("content_block_stop", index=self._index)

    def _call(self, call: ParsedCall) -> bytes:
        events = self._close() + self._start("tool_use", _call_block(call))
        events += self._delta({"type": "input_json_delta", "partial_json": json.dumps(_arguments(call))})
        return events + self._close()


def broken(error: ApiError) -> bytes:
    """The last event of a stream that broke; SDKs raise it."""
    return sse.named_event("error", anthropic_error(error))


def _event(kind: str, **fields: Any) -> bytes:
    return sse.named_event(kind, {"type": kind, **fields})
