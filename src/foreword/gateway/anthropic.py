"""/v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec

from foreword.gateway.breakpoints import CacheUsage, Mark, count, find_marks, keep, locate
from foreword.gateway.chat import ChatPrompt, prepare_chat
from foreword.gateway.errors import Refusal, unsupported
from foreword.gateway.exchange import Exchange
from foreword.gateway.generate import Generation, TextDelta, TextOptions
from foreword.gateway.message_events import MessageEvents, broken, content_blocks, stop_fields
from foreword.gateway.message_input import chat_messages, chat_tools
from foreword.gateway.protocol.chat import Tool
from foreword.gateway.protocol.common import refuse_unsupported, stop_strings
from foreword.gateway.protocol.messages import CountRequest, MessagesRequest
from foreword.gateway.serving import Serving
from foreword.gateway.workers import block_size_of

_UNSUPPORTED = {
    "mcp_servers": "MCP servers are not called here.",
    "container": "containers are not run here.",
    "context_management": "the context is taken as it is sent.",
}
_THINKS = {"enabled": True, "adaptive": True, "disabled": False}

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MarkedPrompt:
    """A prompt ready to be answered, with its breakpoints and their places in tokens."""

    prompt: ChatPrompt
    marks: Sequence[Mark]
    places: Sequence[int]


class MessagesEndpoints:
    """Answers messages, whole or streamed, and counts their tokens."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._decoder = msgspec.json.Decoder(MessagesRequest)
        self._count_decoder = msgspec.json.Decoder(CountRequest)

    async def count(self, exchange: Exchange) -> None:
        """How many tokens a prompt has."""
        request = exchange.decode(self._count_decoder)
        marked = await self._prepare(exchange, request)
        await exchange.respond_json({"input_tokens": len(marked.prompt.ids)})

    async def answer(self, exchange: Exchange) -> None:
        """Answer one request."""
        request = exchange.decode(self._decoder)
        marked = await self._prepare(exchange, request)
        generation = self._start(exchange, request, marked)
        answer = _MessageAnswer(exchange, request, marked, generation)
        async with aclosing(self._serving.deltas(exchange, [generation])) as deltas:
            async for _, delta in deltas:
                await answer.push(delta)
        await answer.finish()

    async def _prepare(self, exchange: Exchange, request: CountRequest) -> MarkedPrompt:
        """Render and tokenise a prompt and find its breakpoints; raises Refusal, TemplateError or TokenizerError."""
        _check(request)
        marks = find_marks(request)
        variables = _variables(request)
        prompt = await self._render(exchange, request, variables)
        block_size = block_size_of(self._serving.pool.find_model(request.model))
        tenant = exchange.organisation
        places = await locate(marks, request, prompt, variables=variables, block_size=block_size, tenant=tenant)
        return MarkedPrompt(prompt, marks, places)

    async def read_prompt(self, exchange: Exchange) -> Sequence[int]:
        """The ids of a request that is answered elsewhere; its prefix is noted as that of every other."""
        request = exchange.decode(self._decoder)
        return (await self._render(exchange, request, _variables(request))).ids

    async def _render(self, exchange: Exchange, request: CountRequest, variables: Json) -> ChatPrompt:
        return await prepare_chat(
            self._serving,
            exchange,
            request.model,
            messages=chat_messages(request),
            tools=_chosen_tools(request),
            variables=variables,
        )

    def _start(self, exchange: Exchange, request: MessagesRequest, marked: MarkedPrompt) -> Generation:
        prompt = marked.prompt
        keeps_special = prompt.tool_format is not None and prompt.tool_format.special
        (generation,) = self._serving.start(
            exchange,
            request,
            prompt.loaded,
            [prompt.ids],
            sampling=request.sampling_params(max_tokens=request.max_tokens),
            options=TextOptions(
                stop_strings(request.stop_sequences, self._serving.config.max_stop_strings),
                skip_special_tokens=not keeps_special,
            ),
            breakpoints=keep(marked.marks, marked.places),
        )
        return generation


def _check(request: CountRequest) -> None:
    refuse_unsupported(request, _UNSUPPORTED)
    if (request.output_config or {}).get("format"):
        raise unsupported("output_config.format", "the answer cannot be held to a schema here.")
    if request.messages and request.messages[-1].role == "assistant":
        message = "The last message is the assistant's; its beginning cannot be given here."
        raise Refusal(message, param="messages", code="unsupported_value", hint="End with a user's message.")


def _variables(request: CountRequest) -> Json:
    """What the template is told; reasoning is off unless asked for, as at Anthropic, where the template can turn it off."""
    if request.thinking is None:
        return {"enable_thinking": False}
    if request.thinking.type not in _THINKS:
        raise unsupported("thinking", f"the type {request.thinking.type[:50]!r} is not supported.")
    return {"enable_thinking": _THINKS[request.thinking.type]}


def _chosen_tools(request: CountRequest) -> list[Tool]:
    """The tools to offer; a forced call cannot be promised, so is refused."""
    kind = (request.tool_choice or {}).get("type", "auto")
    if kind not in ("auto", "none"):
        raise unsupported("tool_choice", "only 'auto' and 'none' are supported: a call cannot be forced here.")
    return chat_tools(request.tools) if kind == "auto" else []


class _MessageAnswer:
    """The answer to one request, written as events when streamed, else at the end."""

    def __init__(
        self, exchange: Exchange, request: MessagesRequest, marked: MarkedPrompt, generation: Generation
    ) -> None:
        self._exchange = exchange
        self._request = request
        self._marked = marked
        self._generation = generation
        self._choice = marked.prompt.choices(1)[0]
        self._events = MessageEvents()

    async def push(self, delta: TextDelta) -> None:
        """Take what the model said next."""
        added = self._choice.push(delta)
        if not self._request.stream:
            return
        if not self._exchange.status:
            await self._exchange.start_stream(broken)
            begun: Json = {"stop_reason": None, "stop_sequence": None, "content": []}
            await self._exchange.send_event(self._events.begin(self._describe(begun)))
        if events := self._events.push(added):
            await self._exchange.send_event(events)

    async def finish(self) -> None:
        """Send the whole message, or the end of the stream."""
        stop, usage = stop_fields(self._choice), self._usage()
        self._exchange.log["cache_write_tokens"] = self._cache_usage().written
        if not self._request.stream:
            await self._exchange.respond_json(self._describe({**stop, "content": content_blocks(self._choice)}))
            return
        await self._exchange.send_event(self._events.end(stop, usage))
        await self._exchange.end_stream()

    def _describe(self, state: Json) -> Json:
        return {
            "id": f"msg_{self._exchange.request_id}",
            "type": "message",
            "role": "assistant",
            "model": self._request.model,
            **state,
            "usage": self._usage(),
        }

    def _cache_usage(self) -> CacheUsage:
        generation = self._generation
        return count(generation.cached_tokens, self._marked.marks, self._marked.places, generation.reporting)

    def _usage(self) -> Json:
        """Anthropic's counts: ``input_tokens`` are those neither read from the cache nor written to it."""
        cache, generation = self._cache_usage(), self._generation
        return {
            "input_tokens": generation.prompt_tokens - cache.read - cache.written,
            "cache_creation_input_tokens": cache.written,
            "cache_read_input_tokens": cache.read,
            "cache_creation": {
                "ephemeral_5m_input_tokens": cache.written_5m,
                "ephemeral_1h_input_tokens": cache.written_1h,
            },
            "output_tokens": generation.completion_tokens,
        }
