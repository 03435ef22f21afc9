"""Two ways of using the cores, and the switch between them.

Many rows (prefill) are limited by arithmetic: they are cut into tiles, whoever is free takes the next one, and BLAS runs
on one thread within each. The caller never waits for a helper that has not begun.
Few rows (a decode step) are limited by reading the weights: BLAS splits each product over the cores. Its threads meet by
spinning, which nothing else here is quick enough for, so this is done only while it pays (``SplitChoice``).
"""

from __future__ import annotations

import math
import os
import queue
import threading
import time
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

    Threads that split a product meet after it, hundreds of times a step. Where another process holds one of the cores,
    each meeting waits for the scheduler, and a step may take twenty times as long as a whole one. A trial that confirms
    the choice doubles the steps until the next, one that overturns it starts again from the shortest interval. A step
    much slower than the other way's last brings the trial forward.
    """

    SHORTEST, LONGEST = 8, 256
    MUCH_SLOWER = 1.5

    def __init__(self) -> None:
        self.split = True
        self._interval = self.SHORTEST
        self._steps = 0
        self._trying = False
        self._seconds = math.inf
        self._other_way = math.inf

    def next(self) -> bool:
        """Whether to split this step; ``took`` must be told how long it was."""
        return self.split != self._trying

    def took(self, seconds: float) -> None:
        """The step is done. The step before a trial is what the trial is compared with."""
        if not self._trying:
            self._seconds, self._steps = seconds, self._steps + 1
            self._trying = self._steps >= self._interval or seconds > self.MUCH_SLOWER * self._other_way
            return
        overturned = seconds < self._seconds
        self.split ^= overturned
        self._other_way = self._seconds if overturned else seconds
        self._interval = self.SHORTEST if overturned else min(2 * self._interval, self.LONGEST)
        self._steps, self._trying = 0, False


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
        self._choice = SplitChoice()
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
    def splitting(self) -> Iterator[None]:
        """For one step of few rows: let BLAS split its products, if that pays at present."""
        start = time.perf_counter()
        with self.blas_threads(self.count if self._choice.next() else 1):
            yield
        self._choice.took(time.perf_counter() - start)

    @contextmanager
    def blas_threads(self, count: int) -> Iterator[None]:
        """Hold BLAS to ``count`` threads, for the whole process, until the block ends."""
        before = [library.num_threads for library in self._blas]
        self._set([count] * len(before))
        try:
            yield
        finally:
            self._set(before)

    def _set(self, counts: Sequence[int]) -> None:
        for library, count in zip(self._blas, counts, strict=True):
            library.set_num_threads(count)

    def close(self) -> None:
        """End the helpers."""
        for _ in self._helpers:
            self._jobs.put(None)
        for helper in self._helpers:
            helper.join()
