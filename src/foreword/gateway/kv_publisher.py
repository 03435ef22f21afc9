"""The embedded engine's KV events in vLLM's wire form, so that any router written for vLLM can follow it.

Facts of the wire (vLLM 0.32): a message is [topic, number, payload], the number eight bytes from 0 on, the payload msgpack
``[time, [events], rank]`` with events as maps that have a ``type``. On the replay socket a client sends a number and gets
every batch from there on, as far as they are kept, and then the number -1.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Any, Literal

import msgspec
import zmq

from foreword.core.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVCacheEvent
from foreword.core.hashing import event_hash
from foreword.errors import ConfigError
from foreword.gateway.kv_events import END

MAX_PORT = 65_535
_NAMES = count()
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 30)]


class KvEventsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ``--kv-events-config`` says; names, defaults and meaning are vLLM's."""

    enable_kv_cache_events: bool = False
    publisher: Literal["null", "zmq"] | None = None
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: Size = 10_000
    hwm: Size = 100_000
    max_queue_size: Size = 100_000
    topic: str = ""

    @property
    def publishes(self) -> bool:
        """Whether there is anything to do."""
        return self.enable_kv_cache_events and self.publisher != "null"


def parse_config(text: str) -> KvEventsConfig:
    """Read the flag's JSON; raises ConfigError."""
    try:
        return msgspec.json.decode(text, type=KvEventsConfig)
    except msgspec.DecodeError as error:
        example = '{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}'
        raise ConfigError(f"--kv-events-config: {error}.", hint=f"Write it as vLLM's, for example {example}.") from None


@dataclass(frozen=True, slots=True)
class PublisherStatistics:
    """Batches published since the start, and those that can be replayed now."""

    published: int
    kept: int


class KvPublisher:
    """Publishes batches from a thread of its own, in the order of the calls.

    ``publish`` may be called from one thread at a time; it never waits for a subscriber.

    Args:
        config: addresses and sizes. As in vLLM, an address without ``*`` that is no ``ipc://`` is connected to.
        clock: the time of day in seconds, which goes into each batch.

    Raises:
        ConfigError: an address that cannot be had.
    """

    def __init__(self, config: KvEventsConfig, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._topic = config.topic.encode()
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps)
        self._numbers = count()
        self._published = 0
        self._encode = msgspec.msgpack.Encoder().encode
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._pub, self._router = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        self._feed, self._taken = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        self._sockets = (self._pub, self._router, self._feed, self._taken)
        self._pub.set_hwm(config.hwm)
        for socket in (self._feed, self._taken):
            socket.set_hwm(0)
        for socket in self._sockets:
            socket.setsockopt(zmq.LINGER, 0)
        try:
            self._open(config)
        except (ConfigError, zmq.ZMQError):
            self._close_sockets()
            raise
        self._thread = threading.Thread(target=self._run, name="foreword-kv-events", daemon=True)
        self._thread.start()

    def _open(self, config: KvEventsConfig) -> None:
        inproc = f"inproc://foreword-kv-events-{next(_NAMES)}"  # an object's id may come again before ZeroMQ has let go
        self._taken.bind(inproc)
        self._feed.connect(inproc)
        _attach(self._pub, config.endpoint)
        if config.replay_endpoint is not None:
            _try(self._router.bind, config.replay_endpoint)

    def publish(self, events: Iterable[KVCacheEvent]) -> None:
        """Send one batch: what happened in one step of the engine."""
        self._feed.send(self._encode((self._clock(), list(map(wire_event, events)), 0)))

    def close(self) -> None:
        """Send what is on its way, end the thread and close the sockets."""
        self._feed.send(b"")
        self._thread.join(5)
        self._close_sockets()

    def statistics(self) -> PublisherStatistics:
        """Counts."""
        return PublisherStatistics(self._published, len(self._kept))

    def _close_sockets(self) -> None:
        for socket in self._sockets:
            socket.close()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._taken, zmq.POLLIN)
        poller.register(self._router, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._taken in ready:
                payload = self._taken.recv()
                if not payload:
                    return
                self._send(payload)
            if self._router in ready:
                self._replay(self._router.recv_multipart())

    def _send(self, payload: bytes) -> None:
        number = next(self._numbers).to_bytes(8, "big")
        self._pub.send_multipart((self._topic, number, payload))
        self._kept.append((number, payload))
        self._published += 1

    def _replay(self, request: list[bytes]) -> None:
        """Answer [client, empty, first number]; anything else is passed over."""
        if len(request) != 3:
            return
        client, _, start = request
        for number, payload in self._kept:
            if int.from_bytes(number, "big") >= int.from_bytes(start, "big"):
                self._router.send_multipart((client, b"", self._topic, number, payload))
        self._router.send_multipart((client, b"", b"", END, b""))


def wire_event(event: KVCacheEvent) -> dict[str, Any]:
    """An event as vLLM writes it. Fields that vLLM leaves out when they say nothing are left out."""
    if isinstance(event, AllBlocksCleared):
        return {"type": "AllBlocksCleared"}
    hashes = [_wire_hash(block_hash) for block_hash in event.block_hashes]
    if isinstance(event, BlockRemoved):
        return {"type": "BlockRemoved", "block_hashes": hashes, "medium": event.medium, "group_idx": 0}
    return _stored(event, hashes)


def _stored(event: BlockStored, hashes: list[int]) -> dict[str, Any]:
    parent = event.parent_block_hash
    extra_keys = event.extra_keys if event.extra_keys and any(event.extra_keys) else None
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": None if parent is None else _wire_hash(parent),
        "token_ids": event.token_ids,
        "block_size": event.block_size,
        "lora_id": None,
        "medium": event.medium,
        "lora_name": event.lora_name,
        **({"extra_keys": extra_keys} if extra_keys else {}),
        "group_idx": 0,
    }


def _wire_hash(block_hash: BlockHash) -> int:
    return block_hash if isinstance(block_hash, int) else event_hash(block_hash)


def _attach(socket: zmq.Socket[bytes], endpoint: str) -> None:
    binds = "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))
    _try(socket.bind if binds else socket.connect, endpoint)


def _try(attach: Callable[[str], object], endpoint: str) -> None:
    port = re.fullmatch(r"tcp://.*:(\d+)", endpoint)
    if port is not None and int(port[1]) > MAX_PORT:  # ZeroMQ would take it modulo 65,536
        raise ConfigError(f"--kv-events-config: {endpoint} has no port of TCP.", hint=f"Ports end at {MAX_PORT}.")
    try:
        attach(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(
            f"--kv-events-config: {endpoint} cannot be opened: {error}.", hint="Choose another address."
        ) from None
