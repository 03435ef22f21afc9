"""The cores at work: one pool for everything, and BLAS held to one thread while it works.

OpenBLAS's own threads wait for each other by spinning, at every product. On a machine with anything else to do, a
decode step then takes twenty times as long as on one thread, and spinning is paid for in CPU time. Here each product
runs on one thread, the work around it is cut into items, and whoever is free takes the next one: the caller never waits
for a helper that has not begun. Even so, a decode step is shared out only as long as that is faster (``SplitChoice``).
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

T = TypeVar("T")


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class SplitChoice:
    """Whether to split the products of a step over the cores, decided by trying the other way now and then.

    Threads that share a product meet after it, a hundred times a step. Where another process holds one of the cores,
    each meeting may wait for the scheduler. A trial that confirms the choice doubles the steps until the next, one that
    overturns it starts again from the shortest interval.
    """

    SHORTEST, LONGEST = 8, 256

    def __init__(self) -> None:
        self.split = True
        self._interval = self.SHORTEST
        self._steps = 0
        self._seconds = 0.0

    def next(self) -> bool:
        """Whether to split this step; ``took`` must be told how long it was."""
        return self.split != (self._steps == self._interval)

    def took(self, seconds: float) -> None:
        """The step is done. The step before a trial is what the trial is compared with."""
        if self._steps < self._interval:
            self._seconds, self._steps = seconds, self._steps + 1
            return
        overturned = seconds < self._seconds
        self.split ^= overturned
        self._interval = self.SHORTEST if overturned else min(2 * self._interval, self.LONGEST)
        self._steps = 0


class _Work(Protocol):
    def work(self) -> None: ...


class _Job(Generic[T]):
    """Items to be worked off, by as many threads as care to."""

    def __init__(self, function: Callable[[T], object], items: Sequence[T]) -> None:
        self._function = function
        self._items = list(reversed(items))
        self._pending = len(items)
        self._lock = threading.Lock()
        self._done = threading.Lock()
        self._done.acquire()
        self.error: BaseException | None = None

    def work(self) -> None:
        """Take items until there are none left."""
        with np.errstate(
            over="ignore"
        ):  # in silu of a very negative gate: exp overflows, and the quotient is rightly 0
            while True:
                try:
                    item = self._items.pop()
                except IndexError:
                    return
                try:
                    self._function(item)
                except BaseException as error:  # noqa: BLE001 - raised again where the job was given
                    self.error = error
                self._finish_one()

    def _finish_one(self) -> None:
        with self._lock:
            self._pending -= 1
            if not self._pending:
                self._done.release()

    def wait(self) -> None:
        """Wait for the items that others have begun; raises what one of them raised."""
        self._done.acquire()
        if self.error is not None:
            raise self.error


class ComputeThreads:
    """``count`` threads, the caller's among them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._jobs: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._blas = ThreadpoolController().select(user_api="blas").lib_controllers
        self._helpers = [
            threading.Thread(target=self._help, name=f"foreword-compute-{index}", daemon=True)
            for index in range(1, count)
        ]
        for helper in self._helpers:
            helper.start()

    def _help(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.work()

    def run(self, function: Callable[[T], object], items: Sequence[T]) -> None:
        """Call ``function`` on every item, in this order of starting; raises what one of them raised."""
        if not items:
            return
        job = _Job(function, items)
        for _ in range(min(len(self._helpers), len(items) - 1)):
            self._jobs.put(job)
        job.work()
        job.wait()

    @contextmanager
    def single_threaded_blas(self) -> Iterator[None]:
        """Hold BLAS to one thread, for the whole process, until the block ends."""
        before = [library.num_threads for library in self._blas]
        for library in self._blas:
            library.set_num_threads(1)
        try:
            yield
        finally:
            for library, count in zip(self._blas, before, strict=True):
                library.set_num_threads(count)

    def close(self) -> None:
        """End the helpers."""
        for _ in self._helpers:
            self._jobs.put(None)
        for helper in self._helpers:
            helper.join()
