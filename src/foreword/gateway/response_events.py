"""The events of a streamed response, in the order that OpenAI's SDKs expect them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from foreword.gateway import sse
from foreword.gateway.chat_output import ChatDelta
from foreword.gateway.errors import ApiError
from foreword.gateway.response_items import call_item, message_item, reasoning_item, text_part
from foreword.gateway.tool_calls import ParsedCall

Json = dict[str, Any]
Describe = Callable[..., Json]
"""The response object in a state: ``describe(status, error=None)``."""
OpenItem = Literal["", "reasoning", "message"]


def broken(error: ApiError) -> bytes:
    """The last event of a stream of somebody else's that broke, whose numbers are not known."""
    told = {"code": error.code or error.type, "message": error.message, "param": error.param}
    return sse.named_event("error", {"type": "error", "sequence_number": 0, **told})


class ResponseEvents:
    """Numbers the events and opens and closes items. At most one item is open; reasoning comes before the message."""

    def __init__(self, stem: str, describe: Describe) -> None:
        self._stem = stem
        self._describe = describe
        self._number = 0
        self._index = -1
        self._open: OpenItem = ""
        self._text = ""
        self._said_anything = False

    def begin(self) -> bytes:
        """The first events."""
        response = self._describe("in_progress")
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def push(self, added: ChatDelta) -> bytes:
        """The events of what was added."""
        events = b""
        if added.reasoning:
            events += self._switch_to("reasoning") + self._reasoning_delta(added.reasoning)
        if added.content:
            events += self._switch_to("message") + self._text_delta(added.content)
        if added.calls:
            events += self._close() + b"".join(map(self._call, added.calls))
        return events

    def end(self, status: str) -> bytes:
        """The last events: an answer of nothing is still a message."""
        events = b"" if self._said_anything else self._switch_to("message")
        events += self._close()
        return events + self._event(f"response.{status}", response=self._describe(status))

    def broken(self, error: ApiError) -> bytes:
        """The last events of a stream that broke."""
        told = {"code": error.code or error.type, "message": error.message}
        events = self._event("error", **told, param=error.param)
        return events + self._event("response.failed", response=self._describe("failed", told))

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return sse.named_event(kind, data)

    def _item_id(self) -> str:
        return f"{'rs' if self._open == 'reasoning' else 'msg'}_{self._stem}"

    def _place(self) -> Json:
        return {"item_id": self._item_id(), "output_index": self._index, "content_index": 0}

    def _switch_to(self, kind: OpenItem) -> bytes:
        if self._open == kind:
            return b""
        events = self._close()
        self._open, self._text, self._index = kind, "", self._index + 1
        if kind == "reasoning":
            item = reasoning_item(self._item_id(), None)
            return events + self._event("response.output_item.added", output_index=self._index, item=item)
        self._said_anything = True
        item = message_item(self._item_id(), None)
        events += self._event("response.output_item.added", output_index=self._index, item=item)
        return events + self._event("response.content_part.added", **self._place(), part=text_part(""))

    def _reasoning_delta(self, text: str) -> bytes:
        self._text += text
        return self._event("response.reasoning_text.delta", **self._place(), delta=text)

    def _text_delta(self, text: str) -> bytes:
        self._text += text
        return self._event("response.output_text.delta", **self._place(), delta=text, logprobs=[])

    def _close(self) -> bytes:
        if self._open == "reasoning":
            events = self._event("response.reasoning_text.done", **self._place(), text=self._text)
            item = reasoning_item(self._item_id(), self._text)
        elif self._open == "message":
            events = self._event("response.output_text.done", **self._place(), text=self._text, logprobs=[])
            events += self._event("response.content_part.done", **self._place(), part=text_part(self._text))
            item = message_item(self._item_id(), self._text)
        else:
            return b""
        self._open = ""
        return events + self._event("response.output_item.done", output_index=self._index, item=item)

    def _call(self, call: ParsedCall) -> bytes:
        self._said_anything = True
        self._index += 1
        item = call_item(call)
        place = {"item_id": item["id"], "output_index": self._index}
        begun = {**item, "arguments": "", "status": "in_progress"}
        return b"".join((
            self._event("response.output_item.added", output_index=self._index, item=begun),
            self._event("response.function_call_arguments.delta", **place, delta=call.arguments),
            self._event(
                "response.function_call_arguments.done", **place, name=call.name, arguments=call.arguments
            ),
            self._event("response.output_item.done", output_index=self._index, item=item),
        ))  # fmt: skip
