"""The engine as a worker of the gateway: computing in a thread of its own, tokens coming out on the event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from foreword.core.cache_request import Emptied
from foreword.core.events import KVCacheEvent
from foreword.core.inspection import PrefixCacheReport, inspect_prefix_cache
from foreword.engine.llm import EngineConfig, Failure, LLMEngine, StepOutput, effective_max_model_len
from foreword.engine.requests import check_request
from foreword.engine.weights import open_model
from foreword.errors import ModelError, WorkerError, WorkerUnavailable
from foreword.generation import GenerateOutput, GenerateRequest, WorkerStatistics

R = TypeVar("R")

_UNHEALTHY_AFTER = 3
"""Steps that fail one after another before the engine calls itself unhealthy."""


class _Stream:
    """The outputs of one request on their way from the engine's thread to its consumer on the event loop."""

    def __init__(self) -> None:
        self._ready: deque[StepOutput] = deque()
        self._arrived = asyncio.Event()

    def put(self, output: StepOutput) -> None:
        """Called on the event loop."""
        self._ready.append(output)
        self._arrived.set()

    async def get(self) -> StepOutput:
        while not self._ready:
            self._arrived.clear()
            await self._arrived.wait()
        return self._ready.popleft()


class AsyncLLM:
    """A model in this process that answers many requests at once.

    Structurally a ``Worker`` and a ``CachingWorker`` of ``foreword.gateway.workers``. ``on_kv_events`` is called on the
    engine's thread after every step, and every reset, that stored or removed blocks. The configuration is read when made (ModelError if it cannot be);
    the weights by ``start``. Everything here runs on one event loop except ``_run``, which owns the engine; the two meet
    in ``_inbox`` (loop to engine) and ``call_soon_threadsafe`` (engine to loop).
    """

    def __init__(
        self,
        model_path: str | Path,
        *,
        model: str,
        name: str = "embedded",
        config: EngineConfig | None = None,
        on_kv_events: Callable[[list[KVCacheEvent]], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.model = model
        self._config = config or EngineConfig()
        self.block_size = self._config.block_size
        self._on_kv_events = on_kv_events
        if on_kv_events is not None:
            self._config = replace(self._config, enable_kv_cache_events=True)
        self._source = open_model(Path(model_path))
        self._make_engine = partial(LLMEngine, self._source, self._config, clock=clock, wall_clock=wall_clock)
        self.max_model_len = effective_max_model_len(self._source.config, self._config)
        self._streams: dict[str, _Stream] = {}
        self._answers: set[asyncio.Future[Any]] = set()
        self._inbox: queue.SimpleQueue[Callable[[LLMEngine], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._engine: LLMEngine | None = None
        self._failed_steps = 0
        self._statistics = WorkerStatistics()

    async def start(self) -> None:
        """Load the weights and start computing; raises ModelError."""
        self._loop = asyncio.get_running_loop()
        try:
            self._engine = await asyncio.to_thread(self._make_engine)
        except ModelError as error:
            raise ModelError(f"The embedded engine cannot start. {error.message}", hint=error.hint) from error
        except MemoryError as error:
            hint = "Give it less memory with --kv-cache-memory or --max-model-len, or serve a smaller model."
            raise ModelError(f"The embedded engine cannot start: {error}.", hint=hint) from error
        self._failed_steps = 0
        self._inbox = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(self._engine,), name="foreword-engine", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Abort what still runs, end the thread and free the model."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._inbox.put(None)
        await asyncio.to_thread(thread.join)
        self._engine = None
        for request_id, stream in self._streams.items():
            stream.put(GenerateOutput(request_id, (), finish_reason="abort"))

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateOutput, None]:
        """Yield tokens as they come; raises RequestError, ContextOverflow, WorkerUnavailable or WorkerError.

        Closing the iterator early aborts the request.
        """
        self._check_running()
        check_request(request, self._source.config.vocab_size, self.max_model_len, taken=self._streams)
        stream = self._streams[request.request_id] = _Stream()
        self._inbox.put(lambda engine: self._add(engine, request))
        try:
            while True:
                output = await stream.get()
                if isinstance(output, Failure):
                    raise output.error
                yield output
                if output.finish_reason is not None:
                    return
        finally:
            del self._streams[request.request_id]
            self._inbox.put(lambda engine: engine.abort(request.request_id))

    async def check_health(self) -> bool:
        """Whether the engine's thread is alive and its last steps did not all fail."""
        return self._thread is not None and self._thread.is_alive() and self._failed_steps < _UNHEALTHY_AFTER

    def statistics(self) -> WorkerStatistics:
        """How busy the engine was after its last step."""
        disk = self._engine.disk if self._engine is not None else None
        return self._statistics if disk is None else replace(self._statistics, disk=disk.store.statistics())

    async def inspect_prefix_cache(self, limit: int) -> PrefixCacheReport:
        """The prefix cache's numbers and its hottest prefixes; raises WorkerUnavailable."""

        def inspect(engine: LLMEngine) -> PrefixCacheReport:
            report = inspect_prefix_cache(engine.prefix_cache, limit)
            return report if engine.disk is None else replace(report, disk=engine.disk.store.statistics())

        return await self._ask(inspect)

    async def reset_prefix_cache(self, organisation: str | None = None, cache_salt: str | None = None) -> Emptied:
        """Forget everything, or what belongs to an organisation, a salt, or both; raises WorkerUnavailable."""

        def reset(engine: LLMEngine) -> Emptied:
            emptied = engine.reset_prefix_cache(organisation, cache_salt)
            self._publish_events(engine)
            return emptied

        return await self._ask(reset)

    async def _ask(self, question: Callable[[LLMEngine], R]) -> R:
        """Have the engine's thread answer a question between two steps."""
        self._check_running()
        answer: asyncio.Future[R] = self._loop.create_future()
        self._answers.add(answer)

        def command(engine: LLMEngine) -> None:
            self._loop.call_soon_threadsafe(_settle, answer, question(engine))

        self._inbox.put(command)
        try:
            return await answer
        finally:
            self._answers.discard(answer)

    def _check_running(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            raise WorkerUnavailable("The embedded engine is not running.", hint="Start the server again.")

    # --- the engine's thread

    def _run(self, engine: LLMEngine) -> None:
        """Take in requests and aborts, compute a step, hand out its tokens; until told to stop."""
        try:
            while self._take_in(engine):
                outputs = engine.step()
                failed = bool(outputs) and all(isinstance(output, Failure) for output in outputs)
                self._failed_steps = self._failed_steps + 1 if failed else 0
                self._publish(engine, outputs)
        except Exception as error:  # noqa: BLE001 - nobody else can tell the consumers that the engine is gone
            self._publish_death(error)
        finally:
            engine.close()

    def _take_in(self, engine: LLMEngine) -> bool:
        """Carry out what came in, waiting while there is nothing to compute; False when told to stop."""
        while True:
            idle = not engine.has_unfinished_requests()
            if idle:
                self._statistics = WorkerStatistics()
            try:
                command = self._inbox.get(block=idle)
            except queue.Empty:
                return True
            if command is None:
                return False
            command(engine)

    def _add(self, engine: LLMEngine, request: GenerateRequest) -> None:
        try:
            engine.add(request)
        except Exception as error:  # noqa: BLE001 - one request that cannot be queued must not end the others
            failure = WorkerError(f"The engine could not take this request: {error!r}.", hint="Try again.")
            self._loop.call_soon_threadsafe(self._deliver, [Failure(request.request_id, failure)])

    def _publish(self, engine: LLMEngine, outputs: list[StepOutput]) -> None:
        statistics = engine.statistics()
        self._statistics = WorkerStatistics(statistics.running, statistics.waiting, statistics.kv_usage)
        self._publish_events(engine)
        if outputs:
            self._loop.call_soon_threadsafe(self._deliver, outputs)

    def _publish_events(self, engine: LLMEngine) -> None:
        if self._on_kv_events is not None and (events := engine.prefix_cache.take_events()):
            self._on_kv_events(events)

    def _publish_death(self, error: Exception) -> None:
        def fail_all() -> None:
            failure = WorkerError(f"The engine has stopped: {error!r}.", hint="Restart the server.")
            self._deliver([Failure(request_id, failure) for request_id in self._streams])
            for answer in self._answers:
                if not answer.done():
                    answer.set_exception(failure)

        self._loop.call_soon_threadsafe(fail_all)

    def _deliver(self, outputs: Sequence[StepOutput]) -> None:
        """On the event loop: give each output to its consumer, if it still has one."""
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None:
                stream.put(output)


def _settle(answer: asyncio.Future[R], value: R) -> None:
    """Answer, unless whoever asked has left."""
    if not answer.done():
        answer.set_result(value)
