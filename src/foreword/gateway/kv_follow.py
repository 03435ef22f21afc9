"""Following the KV events of any worker that has them, by whatever way it offers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog

from foreword.gateway.kv_events import EventSink
from foreword.gateway.kv_subscriber import KvSubscriber
from foreword.gateway.prefix_view import PrefixView
from foreword.gateway.zmq_worker import ZmqWorker

if TYPE_CHECKING:
    from foreword.gateway.member import Client

log = structlog.get_logger()

RESTART_SECONDS = 1.0


def follow(client: Client, view: PrefixView) -> asyncio.Task[None] | None:
    """Start following a worker; None when it publishes nothing. Cancel the task to stop."""
    endpoints = find_endpoints(client)
    if endpoints is not None:
        return _start(client.name, partial(_subscribe, client, endpoints), view)
    if hasattr(client, "follow_kv_events"):
        return _start(client.name, client.follow_kv_events, view)
    return None


def _subscribe(client: Client, endpoints: tuple[str, str | None], sink: EventSink) -> Awaitable[None]:
    rank = getattr(getattr(client, "connection", None), "dp_rank", None)
    return KvSubscriber(*endpoints, sink, dp_rank=rank).run()


def _start(worker: str, subscribe: Callable[[EventSink], Awaitable[None]], view: PrefixView) -> asyncio.Task[None]:
    return asyncio.create_task(keep_following(worker, subscribe, view.follow(worker)), name=f"kv-events {worker}")


async def keep_following(worker: str, subscribe: Callable[[EventSink], Awaitable[None]], sink: EventSink) -> None:
    """Follow until there is nothing to follow. A fault on the way costs what is known of the worker, not its later events."""
    while True:
        try:
            return await subscribe(sink)
        except Exception:
            log.exception("kv_events.fault", worker=worker)
            sink.clear()
            await asyncio.sleep(RESTART_SECONDS)


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
