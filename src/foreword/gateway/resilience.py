"""When to stop asking a failing worker, and how many retries a fleet can bear. Time is an argument, in seconds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from foreword.errors import WorkerError, WorkerUnavailable

BreakerState = Literal["closed", "open", "half_open"]


@dataclass(slots=True)
class CircuitBreaker:
    """Keeps requests from a worker that failed ``threshold`` times in a row.

    Closed: requests pass. Open: none do for a while, twice as long after each failed probe, up to ``max_open_seconds``. Then
    half open: one request is the probe; its success closes the breaker, its failure opens it again.
    """

    threshold: int = 5
    open_seconds: float = 5.0
    max_open_seconds: float = 60.0
    _failures: int = 0
    _openings: int = 0
    _open_until: float = 0.0
    _probing: bool = False

    def state(self, now: float) -> BreakerState:
        """Which of the three it is."""
        if not self._openings:
            return "closed"
        return "open" if now < self._open_until or self._probing else "half_open"

    def can_begin(self, now: float) -> bool:
        """Whether a request may be sent."""
        return self.state(now) != "open"

    def begin(self, now: float) -> None:
        """A request is sent; in the half-open state it is the probe."""
        self._probing = self._probing or self.state(now) == "half_open"

    def succeed(self) -> None:
        """A request was answered: what failed before no longer counts."""
        self._failures = self._openings = 0
        self._probing = False

    def fail(self, now: float) -> None:
        """A request failed by the worker's fault."""
        self._failures += 1
        if self._probing or self._failures >= self.threshold:
            seconds = min(self.open_seconds * 2**self._openings, self.max_open_seconds)
            self._openings += 1
            self._open_until = now + seconds
            self._failures = 0
            self._probing = False

    def release(self) -> None:
        """A request ended that says nothing of the worker: its client left."""
        self._probing = False

    def retry_after(self, now: float) -> float:
        """Seconds until a request may pass; 0 when one may now."""
        return max(0.0, self._open_until - now) if self._openings else 0.0


@dataclass(slots=True)
class RetryBudget:
    """Lets retries be a share of requests, so that a fleet in trouble is not sent twice the load.

    Every ``requests_per_retry`` requests earn a retry, of which up to ``burst`` are saved.
    """

    requests_per_retry: int = 5
    burst: int = 10
    _requests: int = 50

    def deposit(self) -> None:
        """A request came."""
        self._requests = min(self._requests + 1, self.burst * self.requests_per_retry)

    def withdraw(self) -> bool:
        """Take a retry, if one is left."""
        if self._requests < self.requests_per_retry:
            return False
        self._requests -= self.requests_per_retry
        return True


def unavailable(model: str, waits: Iterable[float], failures: Sequence[WorkerError]) -> WorkerUnavailable:
    """What to say when no worker is left: how the last failed, and when to come again.

    ``waits`` are the seconds until each worker's breaker lets a request pass.
    """
    asked = (float(error.evidence.get("retry_after", 1.0)) for error in failures[-1:])
    message = f"No worker of {model!r} can take the request now."
    if failures and not isinstance(failures[-1], WorkerUnavailable):
        message = f"Every worker of {model!r} failed this request; the last said: {failures[-1].message}"
    return WorkerUnavailable(message, hint="Try again.", retry_after=max(1.0, min(waits, default=1.0), *asked))


@contextlib.contextmanager
def refusing_when_stopped(worker: str) -> Iterator[None]:
    """Around calls of a client: raise WorkerUnavailable where they end because the client was stopped meanwhile.

    aiohttp and gRPC end such calls with CancelledError, though nobody cancelled the task. Let out, it would end what must
    go on, like the checks of every other worker.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise WorkerUnavailable(f"The worker {worker} was let go meanwhile.", retry_after=1) from error
