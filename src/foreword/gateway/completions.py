"""/v1/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from foreword.gateway import sse
from foreword.gateway.errors import Refusal
from foreword.gateway.exchange import Exchange
from foreword.gateway.generate import Generation, TextDelta, TextOptions
from foreword.gateway.logprobs import completion_logprobs
from foreword.gateway.protocol.common import check_response_format, refuse_unsupported, stop_strings
from foreword.gateway.protocol.completions import CompletionRequest
from foreword.gateway.serving import Serving
from foreword.gateway.tokenizers import LoadedTokenizer
from foreword.gateway.usage import Usage
from foreword.tokens.tokenizer import TokenIds

_DECODER = msgspec.json.Decoder(CompletionRequest)
DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this endpoint."""

_UNSUPPORTED = {
    "echo": "giving the prompt back is not supported.",
    "suffix": "filling in before a suffix is not supported.",
}


class CompletionsEndpoint:
    """Goes on from text or ids, whole or streamed."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, exchange: Exchange) -> None:
        """Answer one request."""
        request = exchange.decode(_DECODER)
        _check(request)
        loaded = self._serving.find(request.model)
        prompts = await self._prompts(exchange, request, loaded)
        self._serving.note_prompt(exchange, request.prompt)
        generations = self._start(exchange, request, loaded, prompts)
        answer = _CompletionAnswer(exchange, request, loaded, generations)
        async with aclosing(self._serving.deltas(exchange, generations)) as deltas:
            async for index, delta in deltas:
                await answer.push(index, delta)
        await answer.finish()

    async def read_prompt(self, exchange: Exchange) -> Sequence[int] | None:
        """The ids of a request that is answered elsewhere; None when it has several prompts."""
        request = exchange.decode(_DECODER)
        prompts = await self._prompts(exchange, request, self._serving.find(request.model))
        return prompts[0] if len(prompts) == 1 else None

    async def _prompts(
        self, exchange: Exchange, request: CompletionRequest, loaded: LoadedTokenizer
    ) -> list[Sequence[int]]:
        """Each prompt's ids, whichever of the four forms they came in."""
        given: Any = request.prompt
        if isinstance(given, str) or (given and all(isinstance(part, int) for part in given)):
            given = [given]
        limit = self._serving.config.max_prompts
        if not 0 < len(given) <= limit:
            message = f"'prompt' has {len(given)} prompts; it takes from 1 to {limit}."
            raise Refusal(message, param="prompt", code="invalid_value")
        if any(isinstance(part, int) for part in given):
            raise Refusal("'prompt' mixes ids and texts in one list.", param="prompt", code="invalid_value")
        prompts = [await _ids(part, request, loaded, exchange.organisation) for part in given]
        for part, ids in zip(given, prompts, strict=True):
            body = {"prompt": part} if isinstance(part, str) else {}
            self._serving.judge(exchange, request.model, body, ids if isinstance(ids, TokenIds) else TokenIds.of(ids))
        return prompts

    def _start(
        self, exchange: Exchange, request: CompletionRequest, loaded: LoadedTokenizer, prompts: list[Sequence[int]]
    ) -> list[Generation]:
        stop = stop_strings(request.stop, self._serving.config.max_stop_strings)
        return self._serving.start(
            exchange,
            request,
            loaded,
            prompts,
            sampling=request.sampling_params(
                max_tokens=request.max_tokens or DEFAULT_MAX_TOKENS, logprobs=request.logprobs
            ),
            options=TextOptions(stop, request.include_stop_str_in_output, request.skip_special_tokens),
            samples=request.n or 1,
        )


async def _ids(
    prompt: str | list[int], request: CompletionRequest, loaded: LoadedTokenizer, tenant: str
) -> Sequence[int]:
    if isinstance(prompt, str):
        return (await loaded.encode(prompt, add_special_tokens=request.add_special_tokens, tenant=tenant)).ids
    size = loaded.tokenizer.vocab_size
    if any(token >= size for token in prompt):
        message = f"The token id {max(prompt)} is outside the vocabulary of {size}."
        raise Refusal(message, param="prompt", code="invalid_value")
    return prompt


def _check(request: CompletionRequest) -> None:
    refuse_unsupported(request, _UNSUPPORTED)
    check_response_format(request.response_format, "response_format")
    if request.best_of is not None and request.best_of != (request.n or 1):
        message = "'best_of' above 'n' is not supported."
        raise Refusal(message, param="best_of", code="unsupported_value")
    if request.stream_options is not None and not request.stream:
        raise Refusal("'stream_options' needs 'stream': true.", param="stream_options", code="invalid_value")


class _CompletionAnswer:
    """The response to one completion request, written as it comes when streamed, else at the end."""

    def __init__(
        self,
        exchange: Exchange,
        request: CompletionRequest,
        loaded: LoadedTokenizer,
        generations: list[Generation],
    ) -> None:
        self._exchange = exchange
        self._request = request
        self._loaded = loaded
        self._generations = generations
        self._deltas: list[list[TextDelta]] = [[] for _ in generations]
        self._lengths = [0 for _ in generations]
        self._frame = {
            "id": f"cmpl-{exchange.request_id}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": request.model,
        }

    async def push(self, index: int, delta: TextDelta) -> None:
        """Take what one choice said next."""
        if not self._request.stream:
            self._deltas[index].append(delta)
            return
        if not self._exchange.status:
            await self._exchange.start_stream(sse.error_event)
        if delta.text or delta.finish_reason or delta.logprobs:
            await self._send([self._choice(index, [delta])])
        self._lengths[index] += len(delta.text)

    async def finish(self) -> None:
        """Send the whole answer, or the end of the stream."""
        if not self._request.stream:
            choices = [self._choice(index, deltas) for index, deltas in enumerate(self._deltas)]
            await self._exchange.respond_json({**self._frame, "choices": choices, "usage": self._usage()})
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
        await self._exchange.send_event(sse.event({**self._frame, "choices": choices, **more}))

    def _choice(self, index: int, deltas: list[TextDelta]) -> dict[str, Any]:
        logprobs = None
        if self._request.logprobs is not None:
            rows = [row for delta in deltas for row in delta.logprobs]
            logprobs = completion_logprobs(rows, self._loaded, self._request.logprobs, self._lengths[index])
        return {
            "index": index,
            "text": "".join(delta.text for delta in deltas),
            "logprobs": logprobs,
            "finish_reason": deltas[-1].finish_reason if deltas else None,
            "stop_reason": deltas[-1].stop_reason if deltas else None,
        }

    def _usage(self) -> dict[str, Any]:
        return Usage.of(self._generations, samples=self._request.n or 1).as_completion()
