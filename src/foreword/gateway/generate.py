"""One prompt's answer as text: worker ids through the detokenizer, with stop strings, logprobs and counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from foreword.errors import ContextOverflow, WorkerError
from foreword.gateway.fleet import Fleet
from foreword.gateway.tokenizers import LoadedTokenizer
from foreword.generation import GenerateOutput, GenerateRequest, SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How ids become the answer's text; stop strings end it and are left out unless asked for."""

    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What one step added; the last has a finish reason. ``stop_reason`` is the stop string or token that ended it."""

    text: str = ""
    tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: Literal["stop", "length"] | None = None
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class CacheReporting:
    """How many cached tokens a client is told of: those there were, or fewer, by the rule of a provider.

    Attributes:
        minimum: fewer are told as none.
        step: told in multiples of this; 0 is off.
    """

    minimum: int = 0
    step: int = 0

    def reported(self, tokens: int) -> int:
        """What a client is told."""
        rounded = tokens - tokens % self.step if self.step else tokens
        return rounded if rounded >= self.minimum else 0


@dataclass(slots=True)
class Generation:
    """One sample of one prompt. Iterate ``deltas()`` once; the counts are final when it ends.

    Closing the iterator early aborts the request at the worker.
    """

    model: str
    request: GenerateRequest
    tokenizer: LoadedTokenizer
    pool: Fleet
    options: TextOptions = field(default_factory=TextOptions)
    reporting: CacheReporting = field(default_factory=CacheReporting)
    worker: str = ""
    predicted_cached_tokens: int | None = None
    cached_tokens: int = 0
    completion_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.token_ids)

    @property
    def reported_cached_tokens(self) -> int:
        """Cached tokens that the client is told of; metrics and the log have the true count."""
        return self.reporting.reported(self.cached_tokens)

    async def deltas(self) -> AsyncGenerator[TextDelta, None]:
        """The answer piece by piece; raises WorkerError."""
        options = self.options
        text = self.tokenizer.text_stream(
            options.stop,
            include_stop=options.include_stop,
            skip_special_tokens=options.skip_special_tokens,
            prompt_ids=self.request.token_ids,
        )
        async with aclosing(self.pool.generate(self.model, self.request)) as outputs:
            async for worker, output in outputs:
                self.worker = worker.name
                self.predicted_cached_tokens = worker.predicted_cached_tokens
                self._count(output)
                added = text.push(_visible(output))
                if text.stopped is not None:
                    yield TextDelta(added, len(output.token_ids), output.logprobs or (), "stop", text.stopped)
                    return
                if output.finish_reason is not None:
                    yield self._last(output, added + text.finish(), text.stopped)
                    return
                yield TextDelta(added, len(output.token_ids), output.logprobs or ())
        raise WorkerError(f"The worker {self.worker!r} ended the request without saying why.")

    def _count(self, output: GenerateOutput) -> None:
        self.completion_tokens += len(output.token_ids)
        self.cached_tokens = max(self.cached_tokens, output.num_cached_tokens)

    def _last(self, output: GenerateOutput, text: str, stopped: str | None) -> TextDelta:
        if output.finish_reason == "abort":
            raise WorkerError(f"The worker {self.worker!r} aborted the request.")
        finish: Literal["stop", "length"] = "length" if output.finish_reason == "length" and stopped is None else "stop"
        reason = output.stop_token_id if stopped is None else stopped
        return TextDelta(text, len(output.token_ids), output.logprobs or (), finish, reason)


def _visible(output: GenerateOutput) -> Sequence[int]:
    """The ids that are text: a stop token at the end is not."""
    if output.stop_token_id is not None and output.token_ids[-1:] == (output.stop_token_id,):
        return output.token_ids[:-1]
    return output.token_ids


def check_context(prompt_tokens: int, max_tokens: int | None, max_model_len: int) -> None:
    """Raise ContextOverflow, with both numbers, when prompt and answer do not fit."""
    wanted = prompt_tokens + (max_tokens or 1)
    if wanted > max_model_len:
        answer = f" and {max_tokens} for the answer were asked" if max_tokens else ""
        raise ContextOverflow(
            f"The model's context is {max_model_len} tokens, but the prompt has {prompt_tokens}{answer}.",
            hint="Shorten the prompt or ask for fewer tokens.",
            prompt_tokens=prompt_tokens,
            max_model_len=max_model_len,
        )


def sample_seeds(sampling: SamplingParams, count: int) -> list[int | None]:
    """A seed for each of ``count`` samples of one prompt, so that seeded samples differ and repeat."""
    return [None if sampling.seed is None else sampling.seed + number for number in range(count)]


_Queue: TypeAlias = "asyncio.Queue[tuple[int, TextDelta | Exception | None]]"
"""What each generation said next; None when it is done, an error when it failed."""


async def merge(generations: Sequence[Generation]) -> AsyncGenerator[tuple[int, TextDelta], None]:
    """The deltas of several generations as they come, each with its index; raises the first error of any."""
    if len(generations) == 1:
        async with aclosing(generations[0].deltas()) as deltas:
            async for delta in deltas:
                yield 0, delta
        return
    queue: _Queue = asyncio.Queue(maxsize=64)
    tasks = [asyncio.create_task(_feed(index, generation, queue)) for index, generation in enumerate(generations)]
    try:
        left = len(tasks)
        while left:
            index, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                left -= 1
            else:
                yield index, item
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


async def _feed(index: int, generation: Generation, queue: _Queue) -> None:
    try:
        async with aclosing(generation.deltas()) as deltas:
            async for delta in deltas:
                await queue.put((index, delta))
        await queue.put((index, None))
    except Exception as error:  # noqa: BLE001 - raised again by who reads the queue
        await queue.put((index, error))
