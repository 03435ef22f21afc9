"""/v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec

from foreword.gateway import sse
from foreword.gateway.chat_output import ChatChoice, ChatDelta
from foreword.gateway.errors import Refusal, unsupported
from foreword.gateway.exchange import Exchange
from foreword.gateway.generate import Generation, TextOptions
from foreword.gateway.logprobs import chat_logprobs
from foreword.gateway.messages import render_prompt, require_template, template_messages
from foreword.gateway.protocol.chat import ChatRequest, Message, Tool
from foreword.gateway.protocol.common import check_response_format, refuse_unsupported, stop_strings
from foreword.gateway.serving import Serving
from foreword.gateway.tokenizers import LoadedTokenizer
from foreword.gateway.tool_calls import ParsedCall, ToolFormat, detect_format
from foreword.gateway.usage import Usage

_DECODER = msgspec.json.Decoder(ChatRequest)

_UNSUPPORTED = {
    "functions": "is deprecated; send 'tools'.",
    "function_call": "is deprecated; send 'tool_choice'.",
    "audio": "audio output is not supported.",
    "web_search_options": "web search is not supported.",
}


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation ready to be answered."""

    text: str
    ids: Sequence[int]
    loaded: LoadedTokenizer
    tool_format: ToolFormat | None
    offers_tools: bool = False

    def choices(self, count: int) -> list[ChatChoice]:
        """Readers for so many answers."""
        template = self.loaded.template
        reasons = template is not None and "<think>" in template.source
        return [ChatChoice(self.text, reasons, self.tool_format) for _ in range(count)]


async def prepare_chat(
    serving: Serving,
    exchange: Exchange,
    model: str,
    *,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    variables: dict[str, Any],
) -> ChatPrompt:
    """Render and tokenise a conversation and note its fingerprints; raises Refusal, TemplateError or TokenizerError."""
    loaded = serving.find(model)
    _check_counts(serving, messages, tools)
    template = require_template(loaded)
    plain = template_messages(messages, template)
    text = render_prompt(loaded, plain, tools, variables)
    ids = (await loaded.encode(text, tenant=exchange.organisation)).ids
    offered = [msgspec.to_builtins(tool) for tool in tools]
    segments = serving.segments.of(loaded, plain, offered, text)
    exchange.log.update(segments.as_log())
    if segments.prefix_fp is not None:
        serving.distinct.add(model, segments.prefix_fp)
    serving.note_prefix(exchange, model, {"tools": offered, **variables, "messages": plain}, ids, segments)
    serving.note_prompt(exchange, text)
    return ChatPrompt(text, ids, loaded, detect_format(template.source) if tools else None, bool(tools))


def _check_counts(serving: Serving, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
    for name, given, limit in (
        ("messages", len(messages), serving.config.max_messages),
        ("tools", len(tools), serving.config.max_tools),
    ):
        if given > limit:
            raise Refusal(f"{name!r} has {given} entries, over the limit of {limit}.", param=name, code="too_many")


def chosen_tools(tools: Sequence[Tool] | None, choice: str | dict[str, Any] | None) -> Sequence[Tool]:
    """The tools to offer: all, or none when the choice is "none". A forced call cannot be promised, so is refused."""
    if choice in (None, "auto"):
        return tools or ()
    if choice == "none":
        return ()
    raise unsupported("tool_choice", "only 'auto' and 'none' are supported: a call cannot be forced here.")


class ChatEndpoint:
    """Answers conversations, whole or streamed."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, exchange: Exchange) -> None:
        """Answer one request."""
        request = exchange.decode(_DECODER)
        _check(request)
        prompt = await self._prepare(exchange, request)
        generations = self._start(exchange, request, prompt)
        answer = _ChatAnswer(exchange, request, prompt, generations)
        async with aclosing(self._serving.deltas(exchange, generations)) as deltas:
            async for index, delta in deltas:
                await answer.push(index, delta)
        await answer.finish()

    async def read_prompt(self, exchange: Exchange) -> Sequence[int]:
        """The ids of a request that is answered elsewhere; its prefix is noted as that of every other."""
        return (await self._prepare(exchange, exchange.decode(_DECODER))).ids

    async def _prepare(self, exchange: Exchange, request: ChatRequest) -> ChatPrompt:
        tools = chosen_tools(request.tools, request.tool_choice)
        variables = dict(request.chat_template_kwargs or {})
        if request.reasoning_effort is not None:
            variables["reasoning_effort"] = request.reasoning_effort
        return await prepare_chat(
            self._serving, exchange, request.model, messages=request.messages, tools=tools, variables=variables
        )

    def _start(self, exchange: Exchange, request: ChatRequest, prompt: ChatPrompt) -> list[Generation]:
        keeps_special = prompt.tool_format is not None and prompt.tool_format.special
        return self._serving.start(
            exchange,
            request,
            prompt.loaded,
            [prompt.ids],
            sampling=request.sampling_params(
                max_tokens=request.max_completion_tokens or request.max_tokens,
                logprobs=(request.top_logprobs or 0) if request.logprobs else None,
            ),
            options=TextOptions(
                stop_strings(request.stop, self._serving.config.max_stop_strings),
                request.include_stop_str_in_output,
                request.skip_special_tokens and not keeps_special,
            ),
            samples=request.n or 1,
        )


def _check(request: ChatRequest) -> None:
    refuse_unsupported(request, _UNSUPPORTED)
    check_response_format(request.response_format, "response_format")
    if request.modalities not in (None, ["text"]):
        raise unsupported("modalities", "only text is supported.")
    if request.top_logprobs and not request.logprobs:
        raise Refusal("'top_logprobs' needs 'logprobs': true.", param="top_logprobs", code="invalid_value")
    if request.stream_options is not None and not request.stream:
        raise Refusal("'stream_options' needs 'stream': true.", param="stream_options", code="invalid_value")


class _ChatAnswer:
    """The response to one chat request, written as it comes when streamed, else at the end."""

    def __init__(
        self, exchange: Exchange, request: ChatRequest, prompt: ChatPrompt, generations: list[Generation]
    ) -> None:
        self._exchange = exchange
        self._request = request
        self._prompt = prompt
        self._generations = generations
        self._choices = prompt.choices(len(generations))
        self._frame = {"id": f"chatcmpl-{exchange.request_id}", "created": int(time.time()), "model": request.model}

    async def push(self, index: int, delta: Any) -> None:
        """Take what one choice said next."""
        added = self._choices[index].push(delta)
        if not self._request.stream:
            return
        if not self._exchange.status:
            await self._exchange.start_stream(sse.error_event)
            for number in range(len(self._choices)):
                await self._send([self._chunk(number, {"role": "assistant", "content": ""})])
        if added:
            await self._send([self._chunk(index, _delta_fields(added), added)])

    async def finish(self) -> None:
        """Send the whole answer, or the end of the stream."""
        if not self._request.stream:
            body = {**self._frame, "object": "chat.completion", "choices": self._whole(), "usage": self._usage()}
            await self._exchange.respond_json(body)
            return
        options = self._request.stream_options
        if options is not None and options.include_usage:
            await self._send([], usage=self._usage())
        await self._exchange.send_event(sse.DONE)
        await self._exchange.end_stream()

    async def _send(self, choices: list[dict[str, Any]], **more: Any) -> None:
        options = self._request.stream_options
        if options is not None and options.include_usage and choices:
            more["usage"] = self._usage() if options.continuous_usage_stats else None
        chunk = {**self._frame, "object": "chat.completion.chunk", "choices": choices, **more}
        await self._exchange.send_event(sse.event(chunk))

    def _chunk(self, index: int, fields: dict[str, Any], added: ChatDelta | None = None) -> dict[str, Any]:
        chunk = {"index": index, "delta": fields, "logprobs": None, "finish_reason": added and added.finish_reason}
        if added is not None and self._request.logprobs and added.logprobs:
            chunk["logprobs"] = chat_logprobs(added.logprobs, self._prompt.loaded, self._request.top_logprobs or 0)
        if added is not None and added.finish_reason:
            chunk["stop_reason"] = added.stop_reason
        return chunk

    def _whole(self) -> list[dict[str, Any]]:
        return [self._whole_choice(index, choice) for index, choice in enumerate(self._choices)]

    def _whole_choice(self, index: int, choice: ChatChoice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.content, "refusal": None}
        if choice.reasoning:
            message["reasoning_content"] = choice.reasoning
        if choice.calls:
            message["content"] = choice.content or None
            message["tool_calls"] = [_call_fields(call) for call in choice.calls]
        top = self._request.top_logprobs or 0
        return {
            "index": index,
            "message": message,
            "logprobs": chat_logprobs(choice.logprobs, self._prompt.loaded, top) if self._request.logprobs else None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }

    def _usage(self) -> dict[str, Any]:
        reasoning = sum(choice.reasoning_tokens for choice in self._choices)
        return Usage.of(self._generations, samples=len(self._choices), reasoning_tokens=reasoning).as_completion()


def _delta_fields(added: ChatDelta) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if added.reasoning:
        fields["reasoning_content"] = added.reasoning
    if added.content:
        fields["content"] = added.content
    if added.calls:
        fields["tool_calls"] = [{"index": index, **_call_fields(call)} for index, call in enumerate(added.calls)]
    return fields


def _call_fields(call: ParsedCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
