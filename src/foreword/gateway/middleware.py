"""What every request passes through, outermost first: Observe, Route, Authenticate, Limit.

Each is a stage over one Exchange, so no stage wraps another's ``send``: status and size are read off the exchange.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from foreword.gateway.authentication import ApiKeys
from foreword.gateway.errors import Refusal, api_error, retry_after
from foreword.gateway.exchange import JSON, Exchange, Handler
from foreword.gateway.inflight import InFlight, Turns
from foreword.gateway.logs import RequestLog
from foreword.gateway.metrics import Metrics
from foreword.gateway.routing import Route, Router

log = structlog.get_logger()

RoutedHandler = Callable[[Exchange, Route], Awaitable[None]]

BODY_TIMEOUT = 30.0
"""Seconds that a client may take to send its body."""
LINGER = 1.0
"""Seconds that the rest of a refused body is read and thrown away, so that the refusal reaches its client."""

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")


class Observe:
    """Gives each request an id, turns errors into answers, and records the outcome in metrics and the log."""

    def __init__(self, handler: Handler, metrics: Metrics) -> None:
        self._handler = handler
        self._metrics = metrics
        self._prefix = secrets.token_hex(6)
        self._numbers = itertools.count(1)
        self._log = RequestLog()

    async def __call__(self, exchange: Exchange) -> None:
        """Handle the exchange and let no error out but the cancelling of the whole server."""
        exchange.request_id = self.request_id(exchange.headers)
        try:
            await self._handler(exchange)
        except ConnectionError:
            exchange.status = exchange.status or 499
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the client is owed an answer
            await self._fail(exchange, error)
        line = {
            "request_id": exchange.request_id,
            "method": exchange.method,
            "path": exchange.path,
            "org": exchange.organisation,
            "status": exchange.status,
            "bytes_in": len(exchange.body),
            "bytes_out": exchange.sent,
            **exchange.log,
        }
        self.record(exchange.route, exchange.status, exchange.started, line)

    def record(self, route: str, status: int, started: float, line: dict[str, Any]) -> None:
        """Count an answered request and write its log line, whose event is ``http.request`` unless it names another."""
        seconds = time.perf_counter() - started
        self._metrics.observe_request(route, status, seconds)
        line["duration_ms"] = round(seconds * 1e3, 3)
        self._log.write(line.pop("event", "http.request"), line, quiet=route in QUIET_ROUTES)

    def request_id(self, headers: Mapping[bytes, bytes]) -> str:
        """The client's own id when it is a sane one, else a new one."""
        given = headers.get(b"x-request-id")
        if given is not None and _REQUEST_ID.fullmatch(given):
            return given.decode()
        return f"{self._prefix}-{next(self._numbers):x}"

    async def _fail(self, exchange: Exchange, error: Exception) -> None:
        told = api_error(error)
        if told.status == 500:
            log.error("http.fault", request_id=exchange.request_id, exc_info=error)
        exchange.log["error"] = told.code or told.type
        await exchange.fail(told)
        if exchange.unread:
            await self._linger(exchange)
        exchange.status = told.status  # of a broken stream too, where the client has seen 200

    @staticmethod
    async def _linger(exchange: Exchange) -> None:
        """Read and drop what the client still sends: to hang up on it at once could lose the answer on its way."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(LINGER):
                while (await exchange.receive_chunk())[1]:
                    pass
        await exchange.end_stream()


QUIET_ROUTES = frozenset({"/health", "/liveness", "/readiness", "/metrics"})
"""Asked every few seconds by machines; their log lines are for debugging."""


class Dispatch:
    """Finds the route, asks the stages below whether the request may pass, and calls the endpoint."""

    def __init__(self, router: Router, handler: RoutedHandler) -> None:
        self._router = router
        self._handler = handler

    async def __call__(self, exchange: Exchange) -> None:
        """Answer by the route's endpoint; raises Refusal."""
        await self._handler(exchange, self._router.find(exchange))


class Authenticate:
    """Lets in whom the key file names, and says whose request it is. Without key file everybody may do everything."""

    def __init__(self, handler: RoutedHandler, keys: ApiKeys | None) -> None:
        self._handler = handler
        self._keys = keys

    async def __call__(self, exchange: Exchange, route: Route) -> None:
        """Pass the request on; raises Refusal: 401 without a known key, 403 where an admin's is needed."""
        if self._keys is not None and route.access != "open":
            account = self._keys.authenticate(exchange.headers)
            exchange.organisation = account.organisation
            exchange.admin = account.admin
            if route.access == "admin" and not account.admin:
                raise Refusal("This needs an admin's API key.", status=403, code="admin_required")
        await self._handler(exchange, route)


class Limit:
    """Reads the body up to its limit, then lets so many requests run and so many wait; the rest are told to come back."""

    def __init__(self, in_flight: InFlight, *, max_body: int, max_running: int, max_queued: int) -> None:
        self.queued = 0
        self.draining = False
        self._in_flight = in_flight
        self._max_body = max_body
        self._max_running = max_running
        self._max_queued = max_queued
        self._turns = Turns(max_running)

    async def __call__(self, exchange: Exchange, route: Route) -> None:
        """Run the endpoint in its turn; raises Refusal: 413, 415, 429, or 503 while the server stops."""
        if not route.reads_body:
            await route.endpoint(exchange)
            return
        self._check_room()
        _check_content_type(exchange)
        exchange.body = await self._read_body(exchange)
        await self._in_flight.run(self._in_turn, exchange, route)

    def would_run(self, body_size: int) -> bool:
        """Whether a request with such a body would neither be refused nor have to wait."""
        return not self.draining and not self._turns.full and body_size <= self._max_body

    async def _in_turn(self, exchange: Exchange, route: Route) -> None:
        if not self._turns.take():
            await self._wait_for_turn()
        try:
            await route.endpoint(exchange)
        finally:
            self._turns.give()

    def _check_room(self) -> None:
        if self.draining:
            message = "The server is stopping and takes no new requests."
            raise Refusal(message, status=503, code="draining", headers=(*retry_after(1), (b"connection", b"close")))
        if self._turns.full and self.queued >= self._max_queued:
            message = f"{self._max_running} requests are in work and {self._max_queued} wait already."
            raise Refusal(message, status=429, code="too_many_requests", hint="Try again.", headers=retry_after(1))

    async def _wait_for_turn(self) -> None:
        self._check_room()
        self.queued += 1
        try:
            await self._turns.wait()
        finally:
            self.queued -= 1

    async def _read_body(self, exchange: Exchange) -> bytes:
        length = exchange.headers.get(b"content-length", b"0")
        if int(length) > self._max_body:
            raise self._too_large(exchange)
        body = exchange.body_at_hand()
        if body is None:
            return await self._receive_body(exchange)
        if len(body) > self._max_body:
            raise self._too_large(exchange)
        return body

    async def _receive_body(self, exchange: Exchange) -> bytes:
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                while more:
                    if len(body) > self._max_body:
                        raise self._too_large(exchange)
                    chunk, more = await exchange.receive_chunk()
                    body += chunk
        except TimeoutError:
            message = f"The body did not arrive within {BODY_TIMEOUT:g} seconds."
            raise Refusal(message, status=408, code="body_timeout", headers=((b"connection", b"close"),)) from None
        if len(body) > self._max_body:
            raise self._too_large(exchange)
        return bytes(body)

    def _too_large(self, exchange: Exchange) -> Refusal:
        exchange.unread = True
        message = f"The body is over the limit of {self._max_body} bytes."
        return Refusal(message, status=413, code="body_too_large", headers=((b"connection", b"close"),))


def is_json(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the body is said to be JSON, or nothing is said."""
    media = headers.get(b"content-type", JSON).partition(b";")[0].strip().lower()
    return media == JSON or media.endswith(b"+json")


def _check_content_type(exchange: Exchange) -> None:
    if not is_json(exchange.headers):
        given = exchange.headers[b"content-type"]
        raise Refusal(
            f"The content type {given.decode('latin-1')[:100]!r} is not taken.",
            status=415,
            code="unsupported_media_type",
            hint="Send JSON with the header 'Content-Type: application/json'.",
        )
