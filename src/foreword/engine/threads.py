"""Two ways of using the cores, and the switch between them.

One row (a decode step) is limited by reading the weights: OpenBLAS splits each matrix-vector product over the cores,
as long as that is faster (see ``SplitChoice``).
Many rows (prefill) are limited by arithmetic: the rows are cut into tiles, each core takes whole tiles through whole
layers, and OpenBLAS runs on one thread within each, so that no core waits for another between products.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import repeat
from typing import TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

T = TypeVar("T")


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class SplitChoice:
    """Whether to split the products of a step over the cores, decided by trying the other way now and then.

    OpenBLAS's threads meet after every product, hundreds of times a step. Where another process holds one of the cores,
    each meeting waits for the scheduler: beside two busy processes a split step took ten times as long as a whole one.
    Results are the same to the bit. A trial that confirms the choice doubles the steps until the next, one that
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


class ComputeThreads:
    """A pool of ``count`` threads, and OpenBLAS's own thread count held to what suits the work at hand."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="foreword-compute")
        self._blas = ThreadpoolController().select(user_api="blas").lib_controllers
        self._choice = SplitChoice()

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

    def _set(self, counts: list[int]) -> None:
        for library, count in zip(self._blas, counts, strict=True):
            library.set_num_threads(count)

    def run(self, function: Callable[[T], None], items: Sequence[T]) -> None:
        """Call ``function`` on every item, ``count`` at a time; raises what one of them raised. One item runs here."""
        if len(items) == 1:
            _quiet(function, items[0])
            return
        for _ in self._pool.map(_quiet, repeat(function), items):
            pass

    def close(self) -> None:
        """End the pool's threads."""
        self._pool.shutdown()


def _quiet(function: Callable[[T], None], item: T) -> None:
    """In silu of a very negative gate the exponential overflows and the quotient becomes 0, as it should."""
    with np.errstate(over="ignore"):
        function(item)
