"""A worker without a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from foreword.errors import WorkerError, WorkerUnavailable
from foreword.gateway.workers import WorkerStatistics
from foreword.generation import FinishReason, GenerateOutput, GenerateRequest, TokenLogprobs

BLOCK = 16


class FakeWorker:
    """Answers every prompt with given ids, a token a step, and remembers what it was asked.

    It caches prefixes as an engine does, in blocks of 16 by salt, so that a repeated prompt reports cached tokens.

    Args:
        name: of the worker.
        model: the model it says it serves.
        answer: the ids of every answer, or a function of the prompt's ids.
        stop_token_id: appended to each answer that is not cut short by ``max_tokens``.
        max_model_len: context length in tokens.

    Attributes:
        down: refuse every request with WorkerUnavailable and be unhealthy.
        hang_after: stop answering, without ending, after so many tokens; 0 hangs before the first.
        break_after: raise WorkerError after so many tokens.
        requests: every request taken.
        aborted: ids of the requests whose iterator was closed before its end.
        running: requests in work now.
    """

    def __init__(
        self,
        name: str = "fake",
        model: str = "fake-model",
        *,
        answer: Sequence[int] | Callable[[Sequence[int]], Sequence[int]] = (1, 2, 3),
        stop_token_id: int | None = None,
        max_model_len: int = 32_768,
    ) -> None:
        self.name = name
        self.model = model
        self.max_model_len = max_model_len
        self.down = False
        self.hang_after: int | None = None
        self.break_after: int | None = None
        self.started = self.stopped = False
        self.running = 0
        self.requests: list[GenerateRequest] = []
        self.aborted: list[str] = []
        self._answer = answer
        self._stop_token_id = stop_token_id
        self._blocks: set[int] = set()

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
        return WorkerStatistics(running=self.running)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateOutput]:
        """Yield the answer a token at a time."""
        if self.down:
            raise WorkerUnavailable(f"{self.name} is down.", retry_after=2)
        self.requests.append(request)
        self.running += 1
        done = False
        try:
            async for output in self._steps(request):
                done = output.finish_reason is not None
                yield output
        except WorkerError:
            done = True
            raise
        finally:
            self.running -= 1
            if not done:
                self.aborted.append(request.request_id)

    async def _steps(self, request: GenerateRequest) -> AsyncIterator[GenerateOutput]:
        cached = self._take_from_cache(request)
        ids, finish = self._ids(request)
        for number, token in enumerate(ids):
            await self._misbehave(number)
            await asyncio.sleep(0)
            last = number == len(ids) - 1
            yield GenerateOutput(
                request.request_id,
                (token,),
                finish if last else None,
                token if last and token == self._stop_token_id else None,
                num_prompt_tokens=len(request.token_ids),
                num_cached_tokens=cached,
                logprobs=_logprobs(token, request.sampling.logprobs),
            )

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

    def _take_from_cache(self, request: GenerateRequest) -> int:
        """Tokens of whole blocks seen before under this salt, never all of the prompt; the rest is stored."""
        ids, parent, held, hitting = tuple(request.token_ids), hash(request.cache_salt), 0, True
        for start in range(0, len(ids) - BLOCK, BLOCK):
            parent = hash((parent, ids[start : start + BLOCK]))
            hitting = hitting and parent in self._blocks
            held += BLOCK * hitting
            self._blocks.add(parent)
        return held


def _logprobs(token: int, count: int | None) -> tuple[TokenLogprobs, ...] | None:
    if count is None:
        return None
    return (TokenLogprobs(token, -0.5, tuple((token + n, -0.5 - n) for n in range(count))),)
