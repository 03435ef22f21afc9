"""What the gateway itself has sent to a worker and not had back: known at once, where a worker's own report lags."""

from __future__ import annotations

from dataclasses import dataclass

from foreword.gateway.policies import RECENT_HALF_LIFE


@dataclass(slots=True)
class WorkerLoad:
    """Requests and uncached prompt tokens in flight to one worker. Time is an argument, in seconds, and never goes back.

    Each request is ``begin``, then ``prefilled`` at its first output, then ``end``; one that fails early is ended with
    what of its backlog is left.
    """

    requests: int = 0
    backlog_tokens: int = 0
    _recent: float = 0.0
    _recent_at: float = 0.0

    def begin(self, uncached_tokens: int, now: float) -> None:
        """A request was sent that makes the worker prefill ``uncached_tokens``."""
        self.requests += 1
        self.backlog_tokens += uncached_tokens
        self._recent = self.recent_tokens(now) + uncached_tokens
        self._recent_at = now

    def prefilled(self, uncached_tokens: int) -> None:
        """A request's first output came: its prefill is done."""
        self.backlog_tokens -= uncached_tokens

    def end(self, unfinished_tokens: int = 0) -> None:
        """A request is over; ``unfinished_tokens`` is its backlog if no output ever came."""
        self.requests -= 1
        self.backlog_tokens -= unfinished_tokens

    def recent_tokens(self, now: float) -> float:
        """Uncached tokens sent so far, each counted half as much for every half-life since."""
        return float(self._recent * 0.5 ** ((now - self._recent_at) / RECENT_HALF_LIFE))

    def check_integrity(self) -> None:
        """Raise AssertionError when more ended than began."""
        if self.requests < 0 or self.backlog_tokens < 0 or (self.requests == 0 and self.backlog_tokens):
            raise AssertionError(self)
