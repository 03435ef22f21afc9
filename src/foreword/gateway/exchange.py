"""One request and its response: what the ASGI server hands in, and the only way anything is sent back."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

import msgspec

from foreword.gateway.errors import ApiError, ErrorBody, Headers, decoding_refusal, openai_body

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ErrorEvent = Callable[[ApiError], bytes]
"""How a stream that has begun says that it broke."""

JSON = b"application/json"
EVENT_STREAM = b"text/event-stream; charset=utf-8"

SHORTCUT = "foreword.shortcut"
"""Where the scope has the server's way to take a body, and to send a response, in one call; other servers have none."""

T = TypeVar("T")


class Exchange:
    """A request being answered. The server owns the connection; the middleware fills in who asks and what they sent.

    Attributes:
        headers: lower-case name -> value; of a repeated header the last.
        route: the path of the route that answers, for metrics; empty when there is none.
        path_tail: what stands in the path for a route's ``{name}``.
        request_id: the client's own x-request-id, or one made here.
        organisation: whose API key it is; empty when keys are not used.
        admin: whether the key may change the server.
        body: the whole body, read by the middleware.
        log: what endpoints add to the request's log line.
        remarks: headers that endpoints add to the response, whole or streamed.
        status: of the response; 0 until it starts.
        error_body: how the route's API words an error.
        within_event: a stream that is passed on stopped between two events' ends; what is said next must not join it.
        unread: the client may still be sending a body that nobody will read; the response is left open for a moment.
    """

    __slots__ = (
        "_receive", "_send", "admin", "body", "error_body", "error_event", "headers", "log", "method", "organisation",
        "path", "path_tail", "remarks", "request_id", "route", "scope", "sent", "started", "status",
        "unread", "within_event",
    )  # fmt: skip

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.path_tail = ""
        self.route = ""
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.started = time.perf_counter()
        self.request_id = ""
        self.organisation = ""
        self.admin = True
        self.body = b""
        self.status = 0
        self.sent = 0
        self.unread = False
        self.within_event = False
        self.error_body: ErrorBody = openai_body
        self.error_event: ErrorEvent | None = None
        self.log: dict[str, Any] = {}
        self.remarks: list[tuple[bytes, bytes]] = []

    @property
    def target(self) -> str:
        """Path and query as the client wrote them."""
        path: bytes = self.scope.get("raw_path") or self.path.encode()
        query: bytes = self.scope.get("query_string", b"")
        return (path + b"?" + query if query else path).decode("latin-1")

    @property
    def elapsed(self) -> float:
        """Seconds since the request's head was read."""
        return time.perf_counter() - self.started

    def body_at_hand(self) -> bytes | None:
        """The whole body when the server has it already."""
        shortcut = self.scope.get(SHORTCUT)
        body: bytes | None = shortcut.body() if shortcut is not None else None
        return body

    async def receive_chunk(self) -> tuple[bytes, bool]:
        """The next bytes of the body and whether more follow; raises ConnectionError when the client is gone."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError
        return message["body"], message["more_body"]

    async def wait_until_gone(self) -> None:
        """Return when the client has hung up. Only to be called after the whole body is read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def decode(self, decoder: msgspec.json.Decoder[T]) -> T:
        """The body as a typed request; raises Refusal naming the field at fault."""
        try:
            return decoder.decode(self.body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise decoding_refusal(error, self.body) from None

    async def respond(
        self, body: bytes, *, status: int = 200, content_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        """Send a whole response."""
        self.status = status
        self.sent = len(body)
        head = (
            (b"content-type", content_type),
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", self.request_id.encode()),
            *headers,
            *self.remarks,
        )
        shortcut = self.scope.get(SHORTCUT)
        if shortcut is not None and not headers and not self.remarks and shortcut.respond(status, head, body):
            return
        await self._send({"type": "http.response.start", "status": status, "headers": list(head)})
        await self._send({"type": "http.response.body", "body": body, "more_body": self.unread})

    async def respond_json(self, value: Any, *, status: int = 200) -> None:
        """Send a value as JSON."""
        await self.respond(msgspec.json.encode(value), status=status)

    async def start_stream(self, error_event: ErrorEvent) -> None:
        """Send the head of a stream of server-sent events; ``error_event`` says how it would report a break."""
        self.status = 200
        self.error_event = error_event
        head = [
            (b"content-type", EVENT_STREAM),
            (b"cache-control", b"no-cache"),
            (b"x-request-id", self.request_id.encode()),
            *self.remarks,
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": head})

    async def start_relay(self, status: int, headers: Headers, error_event: ErrorEvent | None) -> None:
        """Send the head of an answer that is passed on; a break is told by ``error_event``, or by a cut connection."""
        self.status = status
        self.error_event = error_event
        head = [*headers, (b"x-request-id", self.request_id.encode()), *self.remarks]
        await self._send({"type": "http.response.start", "status": status, "headers": head})

    async def send_event(self, data: bytes) -> None:
        """Send one event of a started stream."""
        self.sent += len(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end_stream(self) -> None:
        """Close a started stream."""
        await self._send({"type": "http.response.body", "body": b""})

    async def fail(self, error: ApiError) -> None:
        """Report an error: as the response, or as the last event of a stream that has begun."""
        if not self.status:
            await self.respond(self.error_body(error, self.request_id), status=error.status, headers=error.headers)
        elif self.error_event is not None:
            await self.send_event((b"\n\n" if self.within_event else b"") + self.error_event(error))
            await self.end_stream()


Handler = Callable[[Exchange], Awaitable[None]]
"""Answers an exchange."""
