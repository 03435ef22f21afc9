"""The workers: which serves which model, how they are, and one attempt elsewhere for each that is down."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing

import structlog

from foreword.errors import ModelNotFound, WorkerError, WorkerUnavailable
from foreword.gateway.metrics import Metrics, Sample
from foreword.gateway.workers import Worker
from foreword.generation import GenerateOutput, GenerateRequest

log = structlog.get_logger()

HEALTH_INTERVAL = 5.0
"""Seconds between health checks of each worker."""


class WorkerPool:
    """Owns the workers: starts and stops them, checks their health, and runs requests on the least busy healthy one."""

    def __init__(self, workers: Sequence[Worker], metrics: Metrics) -> None:
        self._workers = tuple(workers)
        self._metrics = metrics
        self._healthy = {worker.name: False for worker in workers}
        self._running = {worker.name: 0 for worker in workers}

    @property
    def models(self) -> list[str]:
        """Names of the models served, each once, in the workers' order."""
        return list(dict.fromkeys(worker.model for worker in self._workers))

    @property
    def ready(self) -> bool:
        """Whether every model has a healthy worker."""
        healthy = {worker.model for worker in self._workers if self._healthy[worker.name]}
        return all(worker.model in healthy for worker in self._workers)

    async def start(self) -> None:
        """Start every worker; raises WorkerUnavailable when one cannot."""
        for worker in self._workers:
            await worker.start()
            self._healthy[worker.name] = True

    async def stop(self) -> None:
        """Stop every worker."""
        for worker in self._workers:
            with contextlib.suppress(WorkerError):
                await worker.stop()

    def find_model(self, model: str) -> Worker:
        """Any worker of a model, for its limits; raises ModelNotFound naming the models there are."""
        for worker in self._workers:
            if worker.model == model:
                return worker
        known = ", ".join(map(repr, self.models)) or "none"
        raise ModelNotFound(f"There is no model {model[:200]!r}.", hint=f"Served here: {known}.", model=model)

    async def generate(
        self, model: str, request: GenerateRequest
    ) -> AsyncGenerator[tuple[Worker, GenerateOutput], None]:
        """Run a request, on another worker when one fails before its first output.

        Raises:
            WorkerUnavailable: no worker could take it.
            WorkerError: a worker failed after its first output; what was sent cannot be unsent.
        """
        tried: list[str] = []
        failure: WorkerError | None = None
        while (worker := self._pick(model, tried)) is not None:
            tried.append(worker.name)
            begun = False
            try:
                async with aclosing(self._run(worker, request)) as outputs:
                    async for output in outputs:
                        begun = True
                        yield worker, output
            except WorkerError as error:
                self._note_failure(worker, error)
                if begun:
                    raise
                failure = error
            else:
                return
        raise _unavailable(model, failure)

    async def _run(self, worker: Worker, request: GenerateRequest) -> AsyncGenerator[GenerateOutput, None]:
        self._running[worker.name] += 1
        try:
            outputs = worker.generate(request)
            try:
                async for output in outputs:
                    yield output
            finally:
                if (close := getattr(outputs, "aclose", None)) is not None:
                    await close()
        finally:
            self._running[worker.name] -= 1

    def _pick(self, model: str, tried: Sequence[str]) -> Worker | None:
        """The least busy worker not yet tried, healthy ones first: an unhealthy one may have come back."""
        left = [worker for worker in self._workers if worker.model == model and worker.name not in tried]
        return min(left, key=lambda w: (not self._healthy[w.name], self._running[w.name]), default=None)

    def _note_failure(self, worker: Worker, error: WorkerError) -> None:
        log.warning("worker.failed", worker=worker.name, error=str(error))
        self._metrics.observe_failure(worker.name)
        if isinstance(error, WorkerUnavailable):
            self._healthy[worker.name] = False

    async def check_forever(self) -> None:
        """Ask each worker how it is, again and again, until cancelled."""
        while True:
            await asyncio.sleep(HEALTH_INTERVAL)
            for worker in self._workers:
                await self._check(worker)

    async def _check(self, worker: Worker) -> None:
        try:
            async with asyncio.timeout(HEALTH_INTERVAL):
                healthy = await worker.check_health()
        except (WorkerError, OSError, TimeoutError):
            healthy = False
        if healthy != self._healthy[worker.name]:
            log.info("worker.health", worker=worker.name, healthy=healthy)
        self._healthy[worker.name] = healthy

    def samples(self) -> Iterator[Sample]:
        """Health and load of each worker."""
        for worker in self._workers:
            statistics = worker.statistics()
            yield "worker_healthy", (worker.name, worker.model), float(self._healthy[worker.name])
            yield "worker_requests_running", (worker.name,), statistics.running
            yield "worker_requests_waiting", (worker.name,), statistics.waiting
            yield "worker_kv_usage_ratio", (worker.name,), statistics.kv_usage


def _unavailable(model: str, failure: WorkerError | None) -> WorkerUnavailable:
    if failure is not None and not isinstance(failure, WorkerUnavailable):
        message = f"Every worker of {model!r} failed this request; the last said: {failure.message}"
    else:
        message = f"No worker of {model!r} can take the request now."
    after = failure.evidence.get("retry_after", 1) if failure is not None else 1
    return WorkerUnavailable(message, hint="Try again.", retry_after=after)
