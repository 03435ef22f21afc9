"""Requests for models behind HTTP workers: passed on byte for byte, with no more read of them than routing needs.

The one exception keeps organisations apart: their requests carry a cache salt of ours, spliced into the body.
"""

from __future__ import annotations

import asyncio
from array import array

import msgspec

from foreword.gateway import sse
from foreword.gateway.assignment import Assignment
from foreword.gateway.body_salt import set_cache_salt, worker_salt
from foreword.gateway.errors import Interrupted
from foreword.gateway.exchange import Exchange, Handler
from foreword.gateway.fleet import Fleet
from foreword.gateway.http_worker import ProxyResponse
from foreword.gateway.inflight import InFlight
from foreword.gateway.prefix_view import Prompt


class _Peek(msgspec.Struct):
    """What routing looks at; the prompt's parts stay as they were written, in the order the model reads them."""

    model: str
    tools: msgspec.Raw = msgspec.Raw(b"")
    system: msgspec.Raw = msgspec.Raw(b"")
    instructions: msgspec.Raw = msgspec.Raw(b"")
    messages: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    cache_salt: str | msgspec.UnsetType | None = msgspec.UNSET
    prompt_cache_key: str | None = None

    def routing_prompt(self, cache_salt: str | None) -> Prompt:
        """The prompt as routing sees it: its ids where the client sent ids, else its text."""
        parts = (self.tools, self.system, self.instructions, self.messages, self.input, self.prompt)
        ids = _token_ids(bytes(self.prompt))
        return Prompt(ids, b"".join(map(bytes, parts)), cache_salt, self.prompt_cache_key)

    def salted(self, organisation: str, body: bytes) -> tuple[str | None, bytes]:
        """The salt that the worker goes by, and the body that says so: an organisation's is never the client's own."""
        own = self.cache_salt or None
        if not organisation:
            return own, body
        salt = worker_salt(organisation, own)
        return salt, set_cache_salt(body, salt, present=self.cache_salt is not msgspec.UNSET)


_PEEK = msgspec.json.Decoder(_Peek)
_IDS = msgspec.json.Decoder(list[int])


def _token_ids(raw: bytes) -> array[int] | None:
    if not raw.startswith(b"["):
        return None
    try:
        return array("I", _IDS.decode(raw))
    except (msgspec.DecodeError, OverflowError):
        return None


class Forwarding:
    """An endpoint in front of one of ours: requests for models of HTTP workers are passed on, others are answered here."""

    def __init__(self, fleet: Fleet, in_flight: InFlight, endpoint: Handler) -> None:
        self._fleet = fleet
        self._in_flight = in_flight
        self._endpoint = endpoint

    async def __call__(self, exchange: Exchange) -> None:
        """Answer one request."""
        peek = self._peek(exchange.body)
        if peek is None:
            await self._endpoint(exchange)
            return
        watcher = asyncio.create_task(self._interrupt_when_gone(exchange))
        try:
            await self._forward(exchange, peek)
        finally:
            watcher.cancel()

    def _peek(self, body: bytes) -> _Peek | None:
        """What routing needs, if the model is behind HTTP workers; whatever is wrong with a body, our endpoint says it."""
        if not self._fleet.has_forwarders:
            return None
        try:
            peek = _PEEK.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return None
        return peek if peek.model in self._fleet.models and self._fleet.forwards(peek.model) else None

    async def _forward(self, exchange: Exchange, peek: _Peek) -> None:
        salt, body = peek.salted(exchange.organisation, exchange.body)
        assignment, response = await self._fleet.forward(
            peek.model,
            peek.routing_prompt(salt),
            method=exchange.method,
            path=exchange.target,
            headers=exchange.scope["headers"],
            body=body,
        )
        exchange.log.update(event="llm.request", model=peek.model, worker=assignment.name)
        try:
            await self._relay(exchange, response)
        finally:
            response.close()
            self._note(exchange, assignment)

    async def _relay(self, exchange: Exchange, response: ProxyResponse) -> None:
        streams = any(
            name.lower() == b"content-type" and value.startswith(b"text/event-stream")
            for name, value in response.headers
        )
        await exchange.start_relay(response.status, response.headers, sse.error_event if streams else None)
        while chunk := await response.read_chunk():
            await exchange.send_event(chunk)
        await exchange.end_stream()

    def _note(self, exchange: Exchange, assignment: Assignment) -> None:
        exchange.log["predicted_cached_tokens"] = assignment.predicted_cached_tokens
        exchange.log["cached_tokens"] = assignment.reported_cached_tokens

    async def _interrupt_when_gone(self, exchange: Exchange) -> None:
        await exchange.wait_until_gone()
        self._in_flight.interrupt(exchange, Interrupted("The client left.", status=499, code="client_gone"))
