"""Requests for models behind HTTP workers: passed on byte for byte, with no more read of them than routing needs.

The one exception keeps organisations apart: their requests carry a cache salt of ours, spliced into the body. Where the
worker's tokenizer is loaded here, its ids are made here too, for routing, prediction and verdict; the body goes all the same.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import structlog

from foreword.errors import ForewordError
from foreword.gateway import sse
from foreword.gateway.assignment import Assignment, Relay
from foreword.gateway.body_salt import set_cache_salt, worker_salt
from foreword.gateway.exchange import ErrorEvent, Exchange, Handler
from foreword.gateway.prefix_view import Prompt
from foreword.gateway.serving import Serving

log = structlog.get_logger()

ReadPrompt = Callable[[Exchange], Awaitable[Sequence[int] | None]]
"""The ids of a request's prompt, its prefix noted on the way; raises ForewordError for what cannot be read here."""


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

    def routing_prompt(
        self, token_ids: Sequence[int] | None, cache_salt: str | None, lora: str | None = None
    ) -> Prompt:
        """The prompt as routing sees it: its ids where they are known or the client sent ids, else its text."""
        ids = _token_ids(bytes(self.prompt)) if token_ids is None else token_ids
        if ids is not None:
            return Prompt(ids, b"", cache_salt, self.prompt_cache_key, lora)
        parts = (self.tools, self.system, self.instructions, self.messages, self.input, self.prompt)
        return Prompt(None, b"".join(map(bytes, parts)), cache_salt, self.prompt_cache_key, lora)

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

    def __init__(
        self, serving: Serving, endpoint: Handler, read_prompt: ReadPrompt, error_event: ErrorEvent = sse.error_event
    ) -> None:
        self._serving = serving
        self._fleet = serving.pool
        self._endpoint = endpoint
        self._read_prompt = read_prompt
        self._error_event = error_event

    async def __call__(self, exchange: Exchange) -> None:
        """Answer one request."""
        peek = self._peek(exchange.body)
        if peek is None:
            await self._endpoint(exchange)
            return
        token_ids = await self._token_ids(exchange, peek.model)
        async with self._serving.watching(exchange):
            await self._forward(exchange, peek, token_ids)

    def _peek(self, body: bytes) -> _Peek | None:
        """What routing needs, if the model is behind HTTP workers; whatever is wrong with a body, our endpoint says it."""
        if not self._fleet.has_forwarders:
            return None
        try:
            peek = _PEEK.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return None
        return peek if peek.model in self._fleet.models and self._fleet.forwards(peek.model) else None

    async def _token_ids(self, exchange: Exchange, model: str) -> Sequence[int] | None:
        """The ids that the worker will make of the prompt, if they can be known here; what cannot be is its business."""
        if model not in self._serving.tokenizers:
            return None
        try:
            return await self._read_prompt(exchange)
        except ForewordError:
            return None
        except Exception as error:  # noqa: BLE001 - reading along must not cost a request that the worker can answer
            log.warning("forwarding.prompt_unread", request_id=exchange.request_id, error=type(error).__name__)
            return None

    async def _forward(self, exchange: Exchange, peek: _Peek, token_ids: Sequence[int] | None) -> None:
        salt, body = peek.salted(exchange.organisation, exchange.body)
        assignment, response = await self._fleet.forward(
            peek.model,
            peek.routing_prompt(token_ids, salt, peek.model if self._fleet.is_adapter(peek.model) else None),
            method=exchange.method,
            path=exchange.target,
            headers=exchange.scope["headers"],
            body=body,
        )
        exchange.log.update(event="llm.request", model=peek.model, worker=assignment.name)
        try:
            await self._relay(exchange, peek.model, response)
        finally:
            response.close()
            self._note(exchange, peek.model, assignment, token_ids)

    async def _relay(self, exchange: Exchange, model: str, response: Relay) -> None:
        await exchange.start_relay(response.status, response.headers, self._error_event if response.streams else None)
        chunk = await response.read_chunk()
        if response.streams:
            self._serving.note_first_token(exchange, model)
        while chunk:
            exchange.within_event = not chunk.endswith((b"\n\n", b"\r\n\r\n"))
            await exchange.send_event(chunk)
            chunk = await response.read_chunk()
        await exchange.end_stream()

    def _note(self, exchange: Exchange, model: str, assignment: Assignment, token_ids: Sequence[int] | None) -> None:
        """Log what is known of the request, and count the tokens that the worker told."""
        counts = assignment.counts
        prompt_tokens = counts.prompt if counts.prompt is not None or token_ids is None else len(token_ids)
        exchange.log.update(
            prompt_tokens=prompt_tokens,
            predicted_cached_tokens=assignment.predicted_cached_tokens,
            cached_tokens=counts.cached,
            completion_tokens=counts.completion,
        )
        if prompt_tokens is not None and counts.completion is not None:
            cached = counts.cached or 0
            self._serving.metrics.observe_generation(model, assignment.name, prompt_tokens, cached, counts.completion)
