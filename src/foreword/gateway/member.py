"""One worker of the fleet: its client, how it has behaved, what it has in flight."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from foreword.errors import ForewordError
from foreword.gateway.http_worker import ProxyResponse
from foreword.gateway.load import WorkerLoad
from foreword.gateway.policies import Candidate
from foreword.gateway.resilience import CircuitBreaker, refusing_when_stopped
from foreword.generation import GenerateOutput, GenerateRequest, WorkerStatistics

MemberState = Literal["healthy", "unhealthy", "draining"]
Sample = tuple[str, tuple[str, ...], float]
"""A metric's name, labels and value."""


class Client(Protocol):
    """What every client of a worker has, whatever its transport."""

    name: str

    @property
    def model(self) -> str:
        """What it serves; empty until it was reached."""

    @property
    def max_model_len(self) -> int:
        """Tokens that prompt and answer may have together; 0 while it is not known."""

    async def start(self) -> None:
        """Make ready; raises WorkerUnavailable."""

    async def stop(self) -> None:
        """Abort what still runs and free everything."""

    async def check_health(self) -> bool:
        """Whether a request would be taken now."""

    def statistics(self) -> WorkerStatistics:
        """How busy the worker is."""


class Generator(Client, Protocol):
    """A client that takes token ids: :class:`foreword.gateway.workers.Worker`."""

    def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateOutput]:
        """Yield the request's tokens as they come."""


class Forwarder(Client, Protocol):
    """A client that takes HTTP requests as they are."""

    async def forward(
        self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> ProxyResponse:
        """Send a request on."""


@dataclass(slots=True)
class Comparison:
    """Cached tokens foretold and reported, summed over requests, and in how many they differ."""

    predicted_tokens: int = 0
    reported_tokens: int = 0
    differing: int = 0

    def compare(self, predicted: int, reported: int) -> None:
        """Note what was expected of a cache and what its worker says it had."""
        self.predicted_tokens += predicted
        self.reported_tokens += reported
        self.differing += predicted != reported


@dataclass(frozen=True, slots=True)
class MemberStatistics:
    """One worker as operators see it.

    Attributes:
        predicted_tokens: cached tokens foretold exactly, from KV events and the prompt's ids; ``reported_tokens`` are those
            that the worker reported for the same requests, and ``mispredicted`` counts the requests where they differ.
        guessed_tokens: cached tokens guessed, where events or ids are missing; ``guessed_reported_tokens`` are those that
            the worker reported for the same requests.
    """

    name: str
    models: tuple[str, ...]
    state: MemberState
    breaker: str
    requests: int
    backlog_tokens: int
    served: int
    failures: int
    predicted_tokens: int
    reported_tokens: int
    mispredicted: int
    guessed_tokens: int
    guessed_reported_tokens: int
    worker: WorkerStatistics


@dataclass(slots=True)
class Member:
    """A worker in the fleet. The fleet owns it; requests go through ``begin`` and ``end``."""

    client: Client
    load: WorkerLoad = field(default_factory=WorkerLoad)
    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    healthy: bool = False
    draining: bool = False
    served: int = 0
    failures: int = 0
    predictions: Comparison = field(default_factory=Comparison)
    guesses: Comparison = field(default_factory=Comparison)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    events: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.client.name

    @property
    def models(self) -> tuple[str, ...]:
        """What it serves; empty until it was reached."""
        models: tuple[str, ...] = getattr(self.client, "models", ())
        return models or tuple(filter(None, [self.client.model]))

    @property
    def forwards(self) -> bool:
        """Whether it takes HTTP requests as they are, and so tokenises itself."""
        return hasattr(self.client, "forward")

    @property
    def state(self) -> MemberState:
        """Draining wins: it takes no requests, however well it is."""
        if self.draining:
            return "draining"
        return "healthy" if self.healthy else "unhealthy"

    async def is_well(self, seconds: float) -> bool:
        """Whether the client says so, in that time."""
        try:
            async with asyncio.timeout(seconds):
                with refusing_when_stopped(self.name):
                    return await self.client.check_health()
        except (ForewordError, OSError, TimeoutError):
            return False

    def serves(self, model: str, *, forwards: bool) -> bool:
        """Whether requests for the model, of this kind, are for it."""
        return model in self.models and self.forwards == forwards

    def can_begin(self, now: float) -> bool:
        """Whether a request may be sent to it now."""
        return self.state == "healthy" and self.breaker.can_begin(now)

    def candidate(self, cached_tokens: int, now: float) -> Candidate:
        """The worker as a policy sees it."""
        waiting = self.client.statistics().waiting
        load = self.load
        return Candidate(self.name, cached_tokens, load.requests, waiting, load.backlog_tokens, load.recent_tokens(now))

    def begin(self, uncached_tokens: int, now: float) -> None:
        """A request is sent to it."""
        self.load.begin(uncached_tokens, now)
        self.breaker.begin(now)
        self.idle.clear()

    def end(self, unfinished_tokens: int) -> None:
        """A request is over."""
        self.load.end(unfinished_tokens)
        self.breaker.release()
        if not self.load.requests:
            self.idle.set()

    def fail(self, now: float, *, unreachable: bool) -> None:
        """It failed a request; one that cannot be reached gets no more until a health check finds it well."""
        self.failures += 1
        self.breaker.fail(now)
        if unreachable:
            self.healthy = False

    def succeed(self) -> None:
        """It answered a request."""
        self.served += 1
        self.breaker.succeed()

    def statistics(self, now: float) -> MemberStatistics:
        """Its state and counts."""
        return MemberStatistics(
            self.name,
            self.models,
            self.state,
            self.breaker.state(now),
            self.load.requests,
            self.load.backlog_tokens,
            self.served,
            self.failures,
            self.predictions.predicted_tokens,
            self.predictions.reported_tokens,
            self.predictions.differing,
            self.guesses.predicted_tokens,
            self.guesses.reported_tokens,
            self.client.statistics(),
        )


def member_samples(member: MemberStatistics) -> Iterator[Sample]:
    """One worker's metrics."""
    model = member.models[0] if member.models else ""
    yield "worker_healthy", (member.name, model), float(member.state == "healthy")
    yield "worker_requests_running", (member.name,), member.worker.running
    yield "worker_requests_waiting", (member.name,), member.worker.waiting
    yield "worker_requests_in_flight", (member.name,), member.requests
    yield "worker_kv_usage_ratio", (member.name,), member.worker.kv_usage
    if (disk := member.worker.disk) is not None:
        yield "prompt_cache_disk_blocks", (member.name,), disk.held
        for what in ("bytes", "stored", "read", "evicted", "damaged", "failed"):
            yield f"prompt_cache_disk_{what}", (member.name,), getattr(disk, what)
    yield "prefix_cache_predicted_tokens", (member.name, "exact"), member.predicted_tokens
    yield "prefix_cache_reported_tokens", (member.name, "exact"), member.reported_tokens
    yield "prefix_cache_predicted_tokens", (member.name, "approximate"), member.guessed_tokens
    yield "prefix_cache_reported_tokens", (member.name, "approximate"), member.guessed_reported_tokens
    yield "prefix_cache_mispredictions", (member.name,), member.mispredicted
