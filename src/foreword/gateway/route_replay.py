"""A trace replayed through a routing policy: workers are block caches and a prefill queue, no server runs.

The model of a worker: it prefills one request after the other at a fixed rate, skips what its cache holds, and decodes all
its requests at once at a fixed rate each. Requests are routed at their arrival, knowing only what has been sent so far; what
the policy is told of a worker's blocks is what KV events would have told it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from foreword.errors import ConfigError
from foreword.gateway.load import WorkerLoad
from foreword.gateway.policies import Candidate, Policy, RoutingRequest, choose_worker
from foreword.trace.records import TraceRequest
from foreword.trace.replay import BlockCache


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """Speeds and sizes of the simulated workers, all alike.

    Attributes:
        blocks: prefix-cache capacity of each worker, in blocks.
        block_size: tokens a block.
        prefill_rate: prompt tokens computed a second.
        decode_rate: tokens a second in each stream.
    """

    blocks: int
    block_size: int = 512
    prefill_rate: float = 10_000.0
    decode_rate: float = 50.0


@dataclass(frozen=True, slots=True)
class WorkerTotals:
    """One worker at the end: requests taken, prompt tokens prefilled and prompt tokens skipped."""

    requests: int
    prefill_tokens: int
    hit_tokens: int


@dataclass(frozen=True, slots=True)
class RouteResult:
    """What the policy achieved; ``ttft`` is each request's time to first token in seconds, ascending."""

    input_tokens: int
    workers: tuple[WorkerTotals, ...]
    ttft: tuple[float, ...]

    @property
    def hit_tokens(self) -> int:
        """Prompt tokens skipped."""
        return sum(worker.hit_tokens for worker in self.workers)

    @property
    def hit_ratio(self) -> float:
        """Share of all prompt tokens that were skipped."""
        return self.hit_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def load_spread(self) -> float:
        """The busiest worker's prefilled tokens over the mean."""
        prefilled = [worker.prefill_tokens for worker in self.workers]
        return max(prefilled) * len(prefilled) / sum(prefilled) if any(prefilled) else 1.0

    def ttft_percentile(self, percent: float) -> float:
        """Time to first token that ``percent`` of the requests do not exceed."""
        return self.ttft[min(int(len(self.ttft) * percent / 100), len(self.ttft) - 1)] if self.ttft else 0.0


@dataclass(slots=True)
class _SimulatedWorker:
    """A cache, a prefill queue and the gateway's account of what was sent to it."""

    name: str
    model: WorkerModel
    cache: BlockCache
    load: WorkerLoad = field(default_factory=WorkerLoad)
    free_at: float = 0.0
    prefill_tokens: int = 0
    hit_tokens: int = 0
    requests: int = 0
    _due: list[tuple[float, int]] = field(default_factory=list)  # (time, tokens prefilled then, or -1: request over)

    def settle(self, now: float) -> None:
        """Account for what was done by ``now``."""
        while self._due and self._due[0][0] <= now:
            _, tokens = heapq.heappop(self._due)
            if tokens < 0:
                self.load.end()
            else:
                self.load.prefilled(tokens)

    def candidate(self, request: TraceRequest) -> Candidate:
        """The worker as the policy sees it."""
        load = self.load
        cached = request.cached_tokens(self.cache.match(request.blocks), self.model.block_size)
        recent = load.recent_tokens(request.time)
        return Candidate(self.name, cached, load.requests, 0, load.backlog_tokens, recent)

    def run(self, request: TraceRequest, cached: int) -> float:
        """Take the request; return its time to first token."""
        uncached = request.input_tokens - cached
        self.cache.admit(request.blocks)
        self.load.begin(uncached, request.time)
        self.free_at = max(self.free_at, request.time) + uncached / self.model.prefill_rate
        heapq.heappush(self._due, (self.free_at, uncached))
        heapq.heappush(self._due, (self.free_at + (request.output_tokens + 1) / self.model.decode_rate, -1))
        self.requests, self.prefill_tokens = self.requests + 1, self.prefill_tokens + uncached
        self.hit_tokens += cached
        return self.free_at - request.time


def replay_routes(requests: Iterable[TraceRequest], policy: Policy, workers: int, model: WorkerModel) -> RouteResult:
    """Route every request of a trace, in order of arrival; raises ConfigError when there is no worker."""
    if workers < 1:
        raise ConfigError(f"{workers} workers cannot serve a trace.", hint="Give at least one.")
    fleet = [_SimulatedWorker(f"worker-{i}", model, BlockCache(model.blocks)) for i in range(workers)]
    input_tokens, ttft = 0, []
    for request in requests:
        for worker in fleet:
            worker.settle(request.time)
        candidates = [worker.candidate(request) for worker in fleet]
        opening = str(request.blocks[0]).encode() if request.blocks else b""
        chosen = choose_worker(policy, RoutingRequest(request.input_tokens, opening), candidates)
        ttft.append(fleet[chosen].run(request, candidates[chosen].cached_tokens))
        input_tokens += request.input_tokens
    totals = tuple(WorkerTotals(worker.requests, worker.prefill_tokens, worker.hit_tokens) for worker in fleet)
    return RouteResult(input_tokens, totals, tuple(sorted(ttft)))
