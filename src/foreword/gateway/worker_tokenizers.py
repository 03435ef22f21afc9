"""Tokenizers from the workers that offer theirs: what the gateway encodes is then what the engine would."""

from __future__ import annotations

import tempfile
from pathlib import Path

import structlog

from foreword.errors import ForewordError
from foreword.gateway.grpc_worker import GrpcWorker
from foreword.gateway.member import Client
from foreword.gateway.tokenizers import TokenizerRegistry

log = structlog.get_logger()


async def fetch_tokenizer(client: Client, registry: TokenizerRegistry) -> None:
    """Load a gRPC worker's tokenizer under its model's name, unless there is one by that name."""
    if not isinstance(client, GrpcWorker) or any(loaded.name == client.model for loaded in registry):
        return
    with tempfile.TemporaryDirectory(prefix="foreword-tokenizer-") as folder:
        try:
            await client.fetch_tokenizer(Path(folder))
            await registry.add(client.model, folder)
        except ForewordError as error:
            hint = "Give the tokenizer with --tokenizer-path."
            log.warning("worker.no_tokenizer", worker=client.name, error=str(error), hint=hint)
        else:
            log.info("worker.tokenizer_loaded", worker=client.name, model=client.model)
