"""One client connection: uvicorn's, with the bounds on a request's head that uvicorn leaves to a proxy."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from foreword.gateway.errors import Headers
from foreword.gateway.exchange import SHORTCUT
from foreword.gateway.immediate import Immediate

MAX_HEAD = 65_536
"""Bytes of request line and headers."""
HEAD_TIMEOUT = 20.0
"""Seconds in which a head must arrive: from the connection's opening, or from the first byte of a later request."""

_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_TOO_LARGE = b"431 Request Header Fields Too Large", b"headers_too_large", b"The request's head is over 65536 bytes."
_TOO_SLOW = b"408 Request Timeout", b"head_timeout", b"The request's head did not arrive in time."
_INVALID = b"400 Bad Request", b"invalid_http", b"This is not a valid HTTP/1.1 request."


class _Shortcut:
    """uvicorn's ``receive`` and ``send`` for the usual case, at a third of their cost."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def body(self) -> bytes | None:
        """The whole body, when it has arrived and nobody waits to be told to send it."""
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected or cycle.waiting_for_100_continue:
            return None
        cycle.flow.resume_reading()
        body, cycle.body = bytes(cycle.body), bytearray()
        cycle.message_event.clear()
        return body

    def respond(self, status: int, headers: Headers, body: bytes) -> bool:
        """Send a whole response; False leaves it to ``send``. The headers are the gateway's own and need no check."""
        cycle = self._cycle
        if cycle.flow.write_paused or cycle.disconnected or cycle.response_started or cycle.scope["method"] == "HEAD":
            return False
        _write(cycle, status, headers, body)
        return True


def _write(cycle: RequestResponseCycle, status: int, headers: Headers, body: bytes) -> None:
    """Write the response and leave the cycle as ``send`` would."""
    closing = b"" if cycle.keep_alive else b"connection: close\r\n"
    lines = b"".join([b"%b: %b\r\n" % header for header in (*cycle.default_headers, *headers)])
    cycle.transport.writelines((STATUS_LINE[status], lines, closing, b"\r\n", body))
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()


class _Rest:
    """A connection to a parser that begins at a request's body: the head it is given first is not told again."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.on_body = connection.on_body
        self.on_message_complete = connection.on_message_complete
        self.at_body = False

    def on_message_begin(self) -> None:
        """Begin the next request."""
        if self.at_body:
            self._connection.on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take the next request's target."""
        if self.at_body:
            self._connection.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header of the next request."""
        if self.at_body:
            self._connection.on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the next request."""
        if self.at_body:
            self._connection.on_headers_complete()


class Connection(HttpToolsProtocol):
    """A connection whose request heads are bounded in size and time, and refused in the API's own shape.

    A wish to change the protocol (``Upgrade: h2c`` and the like) is not heard, as HTTP allows: the request is answered.
    """

    _head: object = None
    _head_bytes = 0
    _timer: asyncio.TimerHandle | None = None
    _used = 0.0
    _body_at: int | None = None

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._immediate: Immediate = config.app.immediate

    def connection_made(self, transport: Any) -> None:
        """Start the clock on the first head."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Answer at once what can be. Else parse and see whether a head is still open: its scope has no path yet."""
        if self._between_requests() and self._answer_at_once(data):
            return
        super().data_received(data)
        while self._body_at is not None:
            data, self._body_at = data[self._body_at :], None
            self._reframe()
            super().data_received(data)
        scope: Any = self.scope  # None until the first head begins, whatever uvicorn declares
        if scope is None or "path" not in scope:
            self._check_open_head(len(data))
        elif self._timer is not None:
            self._stop_timer()

    def _unsupported_upgrade_warning(self) -> None:
        """Note where the body begins: the parser stopped there, for what follows would be another protocol's."""
        error = sys.exc_info()[1]
        self._body_at = error.args[0] if error is not None else None

    def _reframe(self) -> None:
        """Read the body of a request whose upgrade is not heard with a parser of its own, told how long it is."""
        rest = _Rest(self)
        framing = [b"%b: %b\r\n" % header for header in self.headers if header[0] in _FRAMING]
        self.parser = httptools.HttpRequestParser(rest)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(framing))
        rest.at_body = True

    def on_message_complete(self) -> None:
        """End the body, unless it is still to come: the parser takes a request that would upgrade for whole."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _between_requests(self) -> bool:
        """Whether the next byte begins a request, nothing is owed to earlier ones, and the client reads its answers."""
        cycle: Any = self.cycle
        if cycle is None:
            between = self.scope is None
        else:
            between = cycle.response_complete and not cycle.more_body and cycle.scope is self.scope
        return between and not self.flow.write_paused and not self.transport.is_closing()

    def _answer_at_once(self, data: bytes) -> bool:
        response = self._immediate.answer(data, self.server_state.default_headers)
        if response is None:
            return False
        self.transport.write(response)
        self.server_state.total_requests += 1
        self._used = self.loop.time()
        if self._timer is not None:
            self._stop_timer()
        if self.timeout_keep_alive_task is None:
            self._keep_alive_for(self.timeout_keep_alive)
        return True

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection; one that was used meanwhile gets the rest of its time."""
        left = self._used + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._keep_alive_for(left)
        else:
            super().timeout_keep_alive_handler()

    def _keep_alive_for(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Let the application take a body that is there, and send a whole response, in one call each."""
        cycle.scope[SHORTCUT] = _Shortcut(cycle)  # type: ignore[literal-required]  # the gateway's own key
        super()._start_asgi_task(cycle, app)

    def _check_open_head(self, size: int) -> None:
        """Bound the size and the time of a head. What stands before a later head in the same data is not its own."""
        if self.scope is not self._head:
            self._head = self.scope
            self._head_bytes = size if self.cycle is None else 0
        else:
            self._head_bytes += size
        if self.transport.is_closing():
            return
        if self._head_bytes > MAX_HEAD:
            self._refuse(*_TOO_LARGE)
        elif self._timer is None:
            self._start_timer()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature; its words help nobody
        """Refuse what is no HTTP."""
        self._refuse(*_INVALID)

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(HEAD_TIMEOUT, self._head_timed_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_timed_out(self) -> None:
        if not self.transport.is_closing():
            self._refuse(*_TOO_SLOW)

    def _refuse(self, status: bytes, code: bytes, message: bytes) -> None:
        body = b'{"error":{"message":"%b","type":"invalid_request_error","param":null,"code":"%b"}}' % (message, code)
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (status, len(body)) + body)
        self.transport.close()
