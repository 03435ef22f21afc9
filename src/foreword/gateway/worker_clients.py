"""A worker's client from its URL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from foreword.errors import ConfigError
from foreword.gateway.http_worker import HttpWorker
from foreword.gateway.member import Client
from foreword.gateway.worker_url import WorkerConnection, parse_worker_url
from foreword.gateway.zmq_worker import ZmqWorker


def make_client(
    url: str, *, model: str = "", eos_token_ids: Sequence[int] = (), has_organisations: bool = False
) -> Client:
    """The client for a worker's URL; raises ConfigError for a URL that is none, or a transport that will not do.

    ``model`` and ``eos_token_ids`` are those of the model here, for workers that cannot say theirs (ZMQ). Where requests
    belong to organisations, a transport must carry a cache salt, and gRPC has no field for one in any protocol so far.
    """
    connection = parse_worker_url(url)
    if has_organisations and connection.transport == "grpc":
        raise ConfigError(
            f"The worker {connection.name} cannot keep organisations' prefix caches apart: gRPC carries no cache salt.",
            hint="Use http:// or zmq+ipc:// workers with --api-keys, or serve gRPC workers without it.",
            url=connection.name,
        )
    if connection.transport == "http":
        return HttpWorker(connection)
    if connection.transport == "zmq":
        return ZmqWorker(connection, eos_token_ids=eos_token_ids, model=model)
    return _make_grpc(connection)


def _make_grpc(connection: WorkerConnection) -> Client:
    try:
        from foreword.gateway.grpc_worker import GrpcWorker  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigError(
            f"The worker {connection.name} needs gRPC, which is not installed.",
            hint="Run: pip install 'foreword[grpc]'.",
        ) from error
    return GrpcWorker(connection)


def read_eos_token_ids(folder: Path) -> tuple[int, ...]:
    """The end-of-sequence tokens of a Hugging Face model folder, the model's own first; empty when none are named.

    generation_config.json may name more than config.json does: Llama 3 ends turns and texts with different tokens.
    """
    own, further = (_eos_of(folder / name) for name in ("config.json", "generation_config.json"))
    return tuple(dict.fromkeys([*own, *further]))


def _eos_of(path: Path) -> list[int]:
    try:
        found: Any = msgspec.json.decode(path.read_bytes()).get("eos_token_id")
    except (OSError, msgspec.DecodeError, AttributeError):
        return []
    return [found] if isinstance(found, int) else [token for token in found or [] if isinstance(token, int)]
