"""Following the KV events of any worker that has them, by whatever way it offers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from foreword.gateway.kv_events import EventSink
from foreword.gateway.kv_subscriber import KvSubscriber
from foreword.gateway.prefix_view import PrefixView
from foreword.gateway.zmq_worker import ZmqWorker

if TYPE_CHECKING:
    from foreword.gateway.member import Client


def follow(client: Client, view: PrefixView) -> asyncio.Task[None] | None:
    """Start following a worker; None when it publishes nothing. Cancel the task to stop."""
    endpoints = find_endpoints(client)
    if endpoints is not None:
        rank = getattr(getattr(client, "connection", None), "dp_rank", None)
        return _start(client.name, KvSubscriber(*endpoints, view.follow(client.name), dp_rank=rank).run())
    if hasattr(client, "follow_kv_events"):
        sink: EventSink = view.follow(client.name)
        return _start(client.name, client.follow_kv_events(sink))
    return None


def _start(name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.create_task(work, name=f"kv-events {name}")


def find_endpoints(client: Client) -> tuple[str, str | None] | None:
    """Where a worker publishes and replays: as its URL says, or as a ZMQ engine said of itself."""
    connection = getattr(client, "connection", None)
    if connection is not None and connection.kv_events:
        return connection.kv_events, connection.kv_replay
    if isinstance(client, ZmqWorker):
        config = client.kv_events_config
        if config.get("enable_kv_cache_events") and config.get("publisher") == "zmq":
            replay = config.get("replay_endpoint")
            return reachable(config["endpoint"]), reachable(replay) if replay else None
    return None


def reachable(endpoint: str) -> str:
    """An address to connect to for one that was bound: ``tcp://*:5557`` is every address of the same machine."""
    parts = urlsplit(endpoint)
    if parts.scheme == "tcp" and parts.hostname in ("*", "0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return f"tcp://127.0.0.1:{parts.port}"
    return endpoint
