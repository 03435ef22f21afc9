"""Requests answered in the moment they arrive, without an ASGI task: identical bodies of /v1/tokenize.

Looking up a ready answer takes two microseconds; a scope, a task and a response cycle around it would take twenty. So
a request that came whole in one piece, plain in every respect, is answered where its bytes are received. It passes the
same checks as every other and is counted and logged with them. Whatever is not plain (a refusal, a full house, a miss,
an odd header) is no error here: the answer is None and the request takes the usual way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import httptools

from foreword.gateway.authentication import ApiKeys
from foreword.gateway.errors import Refusal
from foreword.gateway.exchange import JSON
from foreword.gateway.middleware import Limit, Observe, is_json

Ready = Callable[[str, bytes], bytes | None]
"""An organisation and a body to the whole answer, when there is one at once."""

MAX_HEAD = 4096
"""Bytes of a head that is looked at here."""
_MAX_HEADS = 256
_UNUSUAL = frozenset({b"expect", b"upgrade", b"transfer-encoding"})


@dataclass(frozen=True, slots=True)
class Head:
    """A request's head, parsed: the same bytes are parsed once, for clients repeat theirs."""

    size: int
    body_size: int
    headers: Mapping[bytes, bytes]


class Immediate:
    """Answers one route's POST requests at once where it can. The connection asks it first and writes what it gives."""

    def __init__(self, path: str, ready: Ready, observe: Observe, limit: Limit, keys: ApiKeys | None) -> None:
        self._path = path
        self._ready = ready
        self._observe = observe
        self._limit = limit
        self._keys = keys
        self._start = b"POST %b HTTP/1.1\r\n" % path.encode()
        self._heads: dict[bytes, Head | None] = {}
        self._server_headers: list[tuple[bytes, bytes]] = []
        self._lines = b""

    def answer(self, data: bytes, server_headers: list[tuple[bytes, bytes]]) -> bytes | None:
        """The response to ``data`` when that is exactly one request and its answer is ready; else None."""
        started = time.perf_counter()
        end = data.find(b"\r\n\r\n", 0, MAX_HEAD) + 4
        if end < 4 or not data.startswith(self._start):
            return None
        head = self._head(data[:end])
        if head is None or head.size + head.body_size != len(data) or not self._limit.would_run(head.body_size):
            return None
        organisation = self._authenticate(head)
        if organisation is None:
            return None
        answer = self._ready(organisation, data[end:])
        if answer is None:
            return None
        request_id = self._observe.request_id(head.headers)
        line = {
            "request_id": request_id,
            "method": "POST",
            "path": self._path,
            "org": organisation,
            "status": 200,
            "bytes_in": head.body_size,
            "bytes_out": len(answer),
        }
        self._observe.record(self._path, 200, started, line)
        if server_headers is not self._server_headers:  # uvicorn makes a new list when the date changes
            self._server_headers = server_headers
            self._lines = b"".join([b"%b: %b\r\n" % header for header in server_headers])
        return _OK % (self._lines, len(answer), request_id.encode(), answer)

    def _head(self, raw: bytes) -> Head | None:
        try:
            return self._heads[raw]
        except KeyError:
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            head = self._heads[raw] = _HeadParser().parse(raw)
            return head

    def _authenticate(self, head: Head) -> str | None:
        """The organisation; None leaves the refusal to the usual way."""
        if self._keys is None:
            return ""
        try:
            return self._keys.authenticate(head.headers).organisation
        except Refusal:
            return None


_OK = b"HTTP/1.1 200 OK\r\n%bcontent-type: " + JSON + b"\r\ncontent-length: %d\r\nx-request-id: %b\r\n\r\n%b"


class _HeadParser:
    """Parses a head by itself, as the connection's own parser would."""

    def __init__(self) -> None:
        self._headers: dict[bytes, bytes] = {}
        self._complete = False

    def parse(self, raw: bytes) -> Head | None:
        """The head when it is plain: JSON of a known length over a connection that stays open."""
        parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(raw)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            return None
        length = self._headers.get(b"content-length", b"")
        plain = self._complete and parser.should_keep_alive() and not self._headers.keys() & _UNUSUAL
        if not plain or not length.isdigit() or not is_json(self._headers):
            return None
        return Head(len(raw), int(length), self._headers)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; of a repeated one the last, as in an exchange."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Note that the head is whole."""
        self._complete = True
