"""What the gateway needs of a worker: the protocol that the embedded engine and every remote client satisfy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol, runtime_checkable

from foreword.core.cache_request import Emptied
from foreword.core.inspection import PrefixCacheReport
from foreword.generation import GenerateOutput, GenerateRequest, WorkerStatistics

__all__ = ["CachingWorker", "Worker", "WorkerStatistics", "block_size_of"]

DEFAULT_BLOCK_SIZE = 16
"""vLLM's, for workers that do not say theirs."""


class Worker(Protocol):
    """Turns token ids into more token ids.

    The gateway owns the worker: it calls ``start`` once before the first request and ``stop`` once after the last.
    ``generate`` may be called concurrently. Closing its iterator early aborts the request and frees what it held.
    """

    name: str
    model: str
    max_model_len: int

    async def start(self) -> None:
        """Make ready; raises WorkerUnavailable."""

    async def stop(self) -> None:
        """Abort what still runs and free everything."""

    def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateOutput]:
        """Yield the request's tokens as they come; raises RequestError, ContextOverflow or WorkerError."""

    async def check_health(self) -> bool:
        """Whether a request would be taken now."""

    def statistics(self) -> WorkerStatistics:
        """How busy the worker is."""


@runtime_checkable
class CachingWorker(Protocol):
    """A worker that lets its prefix cache be looked into and emptied. Others are passed over."""

    block_size: int

    async def inspect_prefix_cache(self, limit: int) -> PrefixCacheReport:
        """The cache's numbers and its hottest prefixes, at most ``limit``."""

    async def reset_prefix_cache(self, organisation: str | None, cache_salt: str | None) -> Emptied:
        """Forget everything, or what belongs to an organisation, a salt, or an organisation's salt."""


def block_size_of(worker: object) -> int:
    """Tokens a block of the worker's prefix cache."""
    return worker.block_size if isinstance(worker, CachingWorker) else DEFAULT_BLOCK_SIZE
