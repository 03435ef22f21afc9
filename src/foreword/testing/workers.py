"""A worker without a model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from foreword.core.cache_request import CacheRequest, Emptied
from foreword.core.extra_keys import CacheKeys
from foreword.core.hashing import BlockHasher
from foreword.core.inspection import PrefixCacheReport, inspect_prefix_cache
from foreword.core.prefix_cache import PrefixCache
from foreword.core.retention import DAY, IN_MEMORY
from foreword.errors import WorkerError, WorkerUnavailable
from foreword.gateway.workers import WorkerStatistics
from foreword.generation import DiskTierStatistics, FinishReason, GenerateOutput, GenerateRequest, TokenLogprobs

BLOCK = 16


class FakeWorker:
    """Answers every prompt with given ids, a token a step, and remembers what it was asked.

    Its prefix cache is the real one over no KV, in blocks of 16: a repeated prompt reports what an engine would report.

    Args:
        name: of the worker.
        model: the model it says it serves.
        answer: the ids of every answer, or a function of the prompt's ids.
        stop_token_id: appended to each answer that is not cut short by ``max_tokens``.
        max_model_len: context length in tokens.
        num_blocks: blocks of its prefix cache; without it, enough for four full contexts.
        clock: the time for the prefix cache, in seconds.

    Attributes:
        prefix_cache: its prefix cache.
        down: refuse every request with WorkerUnavailable and be unhealthy.
        hang_after: stop answering, without ending, after so many tokens; 0 hangs before the first.
        break_after: raise WorkerError after so many tokens.
        requests: every request taken.
        aborted: ids of the requests whose iterator was closed before its end.
        running: requests in work now.
        disk: what it says of a disk tier; it has none.
    """

    def __init__(
        self,
        name: str = "fake",
        model: str = "fake-model",
        *,
        answer: Sequence[int] | Callable[[Sequence[int]], Sequence[int]] = (1, 2, 3),
        stop_token_id: int | None = None,
        max_model_len: int = 32_768,
        num_blocks: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.model = model
        self.max_model_len = max_model_len
        self.down = False
        self.hang_after: int | None = None
        self.break_after: int | None = None
        self.started = self.stopped = False
        self.running = 0
        self.disk: DiskTierStatistics | None = None
        self.requests: list[GenerateRequest] = []
        self.aborted: list[str] = []
        self._answer = answer
        self._stop_token_id = stop_token_id
        self._clock = clock
        self.block_size = BLOCK
        num_blocks = num_blocks or 4 * -(-max_model_len // BLOCK)
        self.prefix_cache = PrefixCache(num_blocks, BlockHasher(BLOCK), retention=IN_MEMORY)

    async def start(self) -> None:
        """Note that it was started."""
        self.started = True

    async def stop(self) -> None:
        """Note that it was stopped."""
        self.stopped = True

    async def check_health(self) -> bool:
        """Healthy unless ``down``."""
        return not self.down

    def statistics(self) -> WorkerStatistics:
        """Requests running now."""
        return WorkerStatistics(running=self.running, disk=self.disk)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateOutput]:
        """Yield the answer a token at a time."""
        if self.down:
            raise WorkerUnavailable(f"{self.name} is down.", retry_after=2)
        self.requests.append(request)
        self.running += 1
        done = False
        try:
            async with aclosing(self._steps(request)) as steps:
                async for output in steps:
                    done = output.finish_reason is not None
                    yield output
        except WorkerError:
            done = True
            raise
        finally:
            self.running -= 1
            if not done:
                self.aborted.append(request.request_id)

    async def inspect_prefix_cache(self, limit: int) -> PrefixCacheReport:
        """The numbers and the hottest prefixes of its cache."""
        return replace(inspect_prefix_cache(self.prefix_cache, limit), disk=self.disk)

    async def reset_prefix_cache(self, organisation: str | None, cache_salt: str | None) -> Emptied:
        """Empty its cache."""
        return self.prefix_cache.reset(organisation=organisation, cache_salt=cache_salt)

    async def _steps(self, request: GenerateRequest) -> AsyncGenerator[GenerateOutput, None]:
        ids, finish = self._ids(request)
        held = self._admit(request)
        try:
            for number, token in enumerate(ids):
                await self._misbehave(number)
                await asyncio.sleep(0)
                self._append(held, token)
                last = number == len(ids) - 1
                yield GenerateOutput(
                    request.request_id,
                    (token,),
                    finish if last else None,
                    token if last and token == self._stop_token_id else None,
                    num_prompt_tokens=len(request.token_ids),
                    num_cached_tokens=held.num_cached_tokens,
                    logprobs=_logprobs(token, request.sampling.logprobs),
                )
        finally:
            self.prefix_cache.free(held, self._clock())

    def _ids(self, request: GenerateRequest) -> tuple[list[int], FinishReason]:
        ids = list(self._answer(request.token_ids) if callable(self._answer) else self._answer)
        if self._stop_token_id is not None:
            ids.append(self._stop_token_id)
        room = self.max_model_len - len(request.token_ids)
        wanted = min(room, request.sampling.max_tokens or room)
        return (ids[:wanted], "length") if len(ids) > wanted else (ids, "stop")

    async def _misbehave(self, number: int) -> None:
        if self.hang_after is not None and number >= self.hang_after:
            await asyncio.Event().wait()
        if self.break_after is not None and number >= self.break_after:
            raise WorkerError(f"{self.name} broke.")

    def _admit(self, request: GenerateRequest) -> CacheRequest:
        """Take the prompt's blocks, found or new, and keep them as long as was asked; a full cache keeps nothing."""
        now, held = (
            self._clock(),
            CacheRequest(request.request_id, list(request.token_ids), CacheKeys(request.cache_salt)),
        )
        computed = self.prefix_cache.get_computed_blocks(held, now)
        if self.prefix_cache.allocate_slots(held, len(held.token_ids) - computed.num_tokens, computed, now):
            self.prefix_cache.commit(held, len(held.token_ids), now)
        if request.retention == "24h":
            self.prefix_cache.pin(held, len(held.token_ids), now + DAY)
        for point in request.breakpoints:
            self.prefix_cache.pin(held, point.num_tokens, now + point.seconds)
        return held

    def _append(self, held: CacheRequest, token: int) -> None:
        """Note a generated token. Its KV is written when the next one is computed."""
        computed = len(held.token_ids)
        held.token_ids.append(token)
        if held.block_table and self.prefix_cache.allocate_slots(held, 1, now=self._clock()):
            self.prefix_cache.commit(held, computed, self._clock())


def _logprobs(token: int, count: int | None) -> tuple[TokenLogprobs, ...] | None:
    if count is None:
        return None
    return (TokenLogprobs(token, -0.5, tuple((token + n, -0.5 - n) for n in range(count))),)
