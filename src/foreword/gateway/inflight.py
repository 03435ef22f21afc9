"""Requests in work: how many, since when, and the one way to end them from outside."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from foreword.gateway.errors import Interrupted
from foreword.gateway.exchange import Exchange

T = TypeVar("T")

SWEEP_INTERVAL = 0.1
"""Seconds between looks at the clock; a request may outlive its time by so much."""


class InFlight:
    """The exchanges in work with their tasks. Ending one cancels its task, inside which Interrupted is raised.

    Timeout, shutdown and a client that hangs up all end a request the same way.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._tasks: dict[Exchange, asyncio.Task[None]] = {}
        self._reasons: dict[Exchange, Interrupted] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    async def run(self, handler: Callable[[Exchange, T], Awaitable[None]], exchange: Exchange, what: T) -> None:
        """Count the exchange while the current task works on it, and raise Interrupted when it was ended."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("an ASGI server runs every request in a task")
        self._tasks[exchange] = task
        try:
            await handler(exchange, what)
        except asyncio.CancelledError:
            reason = self._reasons.get(exchange)
            if reason is None or task.uncancel() > 0:
                raise
            raise reason from None
        finally:
            del self._tasks[exchange]
            if self._reasons:
                self._reasons.pop(exchange, None)

    def interrupt(self, exchange: Exchange, reason: Interrupted) -> None:
        """End one exchange, once."""
        task = self._tasks.get(exchange)
        if task is not None and exchange not in self._reasons:
            self._reasons[exchange] = reason
            task.cancel()

    def interrupt_all(self, reason: Interrupted) -> None:
        """End every exchange."""
        for exchange in list(self._tasks):
            self.interrupt(exchange, reason)

    async def sweep_forever(self) -> None:
        """End what has run longer than the timeout, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_INTERVAL)
            oldest = time.perf_counter() - self.timeout
            overdue = [exchange for exchange in self._tasks if exchange.started < oldest]
            for exchange in overdue:
                message = f"The request took longer than {self.timeout:g} seconds."
                self.interrupt(exchange, Interrupted(message, status=504, code="timeout"))


class Turns:
    """So many at a time, the others in their order. Paired: a turn taken, or waited for, is given back."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def full(self) -> bool:
        """Whether the next must wait."""
        return self._left == 0

    def take(self) -> bool:
        """Take a turn if there is one now."""
        if self._left == 0:
            return False
        self._left -= 1
        return True

    async def wait(self) -> None:
        """Wait for a turn that another gives back."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give()  # it came in the very moment that nobody wanted it any more
            raise

    def give(self) -> None:
        """Give a turn back: to who has waited longest, if anybody does."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._left += 1
