"""What the gateway needs of a worker: the protocol that the embedded engine and every remote client satisfy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from foreword.generation import GenerateOutput, GenerateRequest, WorkerStatistics

__all__ = ["Worker", "WorkerStatistics"]


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
