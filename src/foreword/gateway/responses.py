"""/v1/responses."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from foreword.gateway.chat import ChatPrompt, chosen_tools, prepare_chat
from foreword.gateway.chat_output import ChatChoice, ChatDelta
from foreword.gateway.errors import unsupported
from foreword.gateway.exchange import Exchange
from foreword.gateway.generate import Generation, TextDelta, TextOptions
from foreword.gateway.protocol.common import check_response_format, refuse_unsupported
from foreword.gateway.protocol.responses import ResponsesRequest
from foreword.gateway.response_events import ResponseEvents
from foreword.gateway.response_items import output_items, request_messages, request_tools
from foreword.gateway.serving import Serving
from foreword.gateway.usage import Usage

_DECODER = msgspec.json.Decoder(ResponsesRequest)

_UNSUPPORTED = {
    "previous_response_id": "responses are not kept; send the previous turns as items of 'input'.",
    "conversation": "conversations are not kept; send the previous turns as items of 'input'.",
    "background": "background responses are not supported.",
    "prompt": "stored prompts are not supported.",
}


class ResponsesEndpoint:
    """Responds to input, whole or streamed. Nothing is stored: earlier turns come with the request."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, exchange: Exchange) -> None:
        """Answer one request."""
        request = exchange.decode(_DECODER)
        _check(request)
        prompt = await self._prepare(exchange, request)
        generations = self._start(exchange, request, prompt)
        answer = _ResponseAnswer(exchange, request, prompt, generations)
        async with aclosing(self._serving.deltas(exchange, generations)) as deltas:
            async for _, delta in deltas:
                await answer.push(delta)
        await answer.finish()

    async def read_prompt(self, exchange: Exchange) -> Sequence[int]:
        """The ids of a request that is answered elsewhere; its prefix is noted as that of every other."""
        return (await self._prepare(exchange, exchange.decode(_DECODER))).ids

    async def _prepare(self, exchange: Exchange, request: ResponsesRequest) -> ChatPrompt:
        tools = chosen_tools(request_tools(request), request.tool_choice)
        effort = (request.reasoning or {}).get("effort")
        variables = {"reasoning_effort": effort} if effort else {}
        messages = request_messages(request)
        return await prepare_chat(
            self._serving, exchange, request.model, messages=messages, tools=tools, variables=variables
        )

    def _start(self, exchange: Exchange, request: ResponsesRequest, prompt: ChatPrompt) -> list[Generation]:
        keeps_special = prompt.tool_format is not None and prompt.tool_format.special
        return self._serving.start(
            exchange,
            request,
            prompt.loaded,
            [prompt.ids],
            sampling=request.sampling_params(max_tokens=request.max_output_tokens),
            options=TextOptions(skip_special_tokens=not keeps_special),
        )


def _check(request: ResponsesRequest) -> None:
    refuse_unsupported(request, _UNSUPPORTED)
    check_response_format((request.text or {}).get("format"), "text.format")
    if request.top_logprobs:  # 0 is OpenAI's default
        raise unsupported("top_logprobs", "log probabilities are not offered here; use /v1/chat/completions.")
    if request.truncation not in (None, "disabled"):
        raise unsupported("truncation", "only 'disabled' is supported; shorten the input instead.")


class _ResponseAnswer:
    """The response to one request, written as events when streamed, else at the end."""

    def __init__(
        self, exchange: Exchange, request: ResponsesRequest, prompt: ChatPrompt, generations: list[Generation]
    ) -> None:
        self._exchange = exchange
        self._request = request
        self._generations = generations
        self._choice: ChatChoice = prompt.choices(1)[0]
        self._created = time.time()
        self._events = ResponseEvents(exchange.request_id, self._describe)

    async def push(self, delta: TextDelta) -> None:
        """Take what the model said next."""
        added: ChatDelta = self._choice.push(delta)
        if not self._request.stream:
            return
        if not self._exchange.status:
            await self._exchange.start_stream(self._events.broken)
            await self._exchange.send_event(self._events.begin())
        if events := self._events.push(added):
            await self._exchange.send_event(events)

    async def finish(self) -> None:
        """Send the whole response, or the end of the stream."""
        if not self._request.stream:
            await self._exchange.respond_json(self._describe(self._status()))
            return
        await self._exchange.send_event(self._events.end(self._status()))
        await self._exchange.end_stream()

    def _status(self) -> str:
        return "incomplete" if self._choice.finish_reason == "length" else "completed"

    def _describe(self, status: str, error: dict[str, Any] | None = None) -> dict[str, Any]:
        """The response object in a given state."""
        request, done = self._request, status in ("completed", "incomplete")
        return {
            "id": f"resp_{self._exchange.request_id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": request.model,
            "output": output_items(self._choice, self._exchange.request_id) if done else [],
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": None,
            "prompt_cache_key": request.prompt_cache_key,
            "prompt_cache_retention": request.prompt_cache_retention,
            "reasoning": request.reasoning,
            "store": False,
            "temperature": request.temperature,
            "text": request.text or {"format": {"type": "text"}},
            "tool_choice": request.tool_choice or "auto",
            "tools": request.tools or [],
            "top_p": request.top_p,
            "truncation": "disabled",
            "usage": self._usage() if done else None,
            "user": request.user,
        }

    def _usage(self) -> dict[str, Any]:
        return Usage.of(self._generations, reasoning_tokens=self._choice.reasoning_tokens).as_response()
