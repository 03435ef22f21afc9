"""Two ways of using the cores, and the switch between them.

One row (a decode step) is limited by reading the weights: OpenBLAS splits each matrix-vector product over the cores.
Many rows (prefill) are limited by arithmetic: the rows are cut into tiles, each core takes whole tiles through whole
layers, and OpenBLAS runs on one thread within each, so that no core waits for another between products.
"""

from __future__ import annotations

import os
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


class ComputeThreads:
    """A pool of ``count`` threads, and OpenBLAS's own thread count held to what suits the work at hand."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="foreword-compute")
        self._blas = ThreadpoolController().select(user_api="blas").lib_controllers

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
