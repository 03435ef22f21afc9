"""Tokenizers for the models of workers that take ids: the one configured, else the worker's own."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Protocol, runtime_checkable

import structlog

from foreword.errors import ForewordError
from foreword.gateway.member import Client
from foreword.gateway.tokenizers import TokenizerRegistry

log = structlog.get_logger()


@runtime_checkable
class OffersTokenizer(Protocol):
    """A worker that can be asked for its tokenizer."""

    async def fetch_tokenizer(self, folder: Path) -> Path:
        """Write the tokenizer's files into an empty folder; raises WorkerError."""


class TokenizerProvider:
    """Loads a tokenizer for each model that workers bring, once.

    Args:
        source: the tokenizer that was configured; None takes the workers' own.
    """

    def __init__(self, registry: TokenizerRegistry, source: str | None) -> None:
        self._registry = registry
        self._source = source
        self._one_at_a_time = asyncio.Lock()

    async def provide(self, client: Client) -> None:
        """Load one under the worker's model's name, unless there is one by that name.

        A worker that takes text needs none: only one that was configured is loaded, so that its prompts are known here.

        What cannot be loaded is logged: the worker serves, and requests for its model say that there is no tokenizer.
        """
        if not client.model or (self._source is None and hasattr(client, "forward")):
            return
        async with self._one_at_a_time:
            if any(loaded.name == client.model for loaded in self._registry):
                return
            try:
                await self._load(client)
            except ForewordError as error:
                hint = "Give the tokenizer with --tokenizer-path."
                log.warning("worker.no_tokenizer", worker=client.name, error=str(error), hint=hint)

    async def _load(self, client: Client) -> None:
        if self._source is not None:
            await self._registry.add(client.model, self._source)
        elif isinstance(client, OffersTokenizer):
            with tempfile.TemporaryDirectory(prefix="foreword-tokenizer-") as folder:
                await self._registry.add(client.model, str(await client.fetch_tokenizer(Path(folder))))
            log.info("worker.tokenizer_loaded", worker=client.name, model=client.model)
