"""A load client in a few lines: raw HTTP/1.1 over kept-alive connections, cheap enough not to be what is measured."""

from __future__ import annotations

import asyncio
import functools
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import uvloop

_LENGTH = b"content-length: "


class _Connection(asyncio.Protocol):
    """Sends the next request as soon as a response is complete; checks only status and length."""

    def __init__(self, next_request: Callable[[], bytes | None], done: asyncio.Future[None]) -> None:
        self.answered = 0
        self._next = next_request
        self._done = done
        self._head = b""
        self._missing = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def _send(self) -> None:
        request = self._next()
        if request is None or self._transport is None:
            if not self._done.done():
                self._done.set_result(None)
        else:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._missing == 0:
            data = self._head + data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._head = data
                return
            self._head = b""
            head = data[:end].lower()
            if not head.startswith(b"http/1.1 200"):
                raise RuntimeError(data[:500])
            start = head.index(_LENGTH) + len(_LENGTH)
            self._missing = int(head[start : head.find(b"\r\n", start) if b"\r\n" in head[start:] else None])
            self._missing -= len(data) - end - 4
        else:
            self._missing -= len(data)
        if self._missing == 0:
            self.answered += 1
            self._send()


def post_all(
    port: int, requests: Sequence[bytes], *, connections: int, seconds: float | None = None
) -> tuple[int, float]:
    """Send every request once, or the requests in turn for so many seconds; (answered, seconds taken)."""
    return uvloop.run(_post_all(port, requests, connections, seconds))


async def _post_all(port: int, requests: Sequence[bytes], connections: int, seconds: float | None) -> tuple[int, float]:
    loop = asyncio.get_running_loop()
    source = _once(requests) if seconds is None else _until(requests, time.perf_counter() + seconds)
    started = time.perf_counter()
    pending = [loop.create_future() for _ in range(connections)]
    clients = [_Connection(lambda: next(source, None), done) for done in pending]
    for client in clients:
        await loop.create_connection(functools.partial(_same, client), "127.0.0.1", port)
    await asyncio.gather(*pending)
    elapsed = time.perf_counter() - started
    return sum(client.answered for client in clients), elapsed


def _same(client: _Connection) -> _Connection:
    return client


def _once(requests: Sequence[bytes]) -> Iterator[bytes]:
    yield from requests


def _until(requests: Sequence[bytes], deadline: float) -> Iterator[bytes]:
    while True:
        for request in requests:
            if time.perf_counter() > deadline:
                return
            yield request


_sockets: dict[int, socket.socket] = {}


def post_once(port: int, request: bytes) -> bytes:
    """Send one request over a connection that is kept for the next; the body of its response."""
    if port not in _sockets:
        _sockets[port] = socket.create_connection(("127.0.0.1", port), timeout=60)
        _sockets[port].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw = _sockets[port]
    raw.sendall(request)
    answer = bytearray()
    while (end := answer.find(b"\r\n\r\n")) < 0:
        answer += raw.recv(1 << 20)
    head = bytes(answer[:end]).lower()
    length = int(head[head.index(_LENGTH) + len(_LENGTH) :].split(b"\r\n")[0])
    while len(answer) < end + 4 + length:
        answer += raw.recv(1 << 20)
    return bytes(answer[end + 4 :])
