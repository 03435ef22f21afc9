"""A subscriber over real sockets: live batches, replay, and the worker's next life."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest
import zmq
import zmq.asyncio

from foreword.core.events import BlockStored, KVCacheEvent
from foreword.gateway import kv_subscriber
from foreword.gateway.kv_subscriber import KvSubscriber, request_replay


class FakeEngine:
    """Publishes and replays as vLLM does, on two sockets in a folder."""

    def __init__(self, folder: Path) -> None:
        self.events_at, self.replay_at = f"ipc://{folder}/events", f"ipc://{folder}/replay"
        self.history: list[bytes] = []
        self.clock = 0.0

    async def __aenter__(self) -> Self:
        context = zmq.asyncio.Context.instance()
        self.history.clear()
        self.publisher, self.router = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        for socket, address in ((self.publisher, self.events_at), (self.router, self.replay_at)):
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind(address)
        self.task = asyncio.create_task(self._serve())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        self.publisher.close(0)
        self.router.close(0)

    async def _serve(self) -> None:
        while True:
            client, _, start = await self.router.recv_multipart()
            for sequence in range(int.from_bytes(start, "big"), len(self.history)):
                await self.router.send_multipart(
                    [client, b"", b"kv-events", sequence.to_bytes(8, "big"), self.history[sequence]]
                )
            await self.router.send_multipart([client, b"", b"kv-events", (-1).to_bytes(8, "big", signed=True), b""])

    async def store(self, block: int, *, lose: bool = False, rank: int = 0) -> None:
        """Publish one stored block, or only remember that it was published."""
        self.clock += 1
        event = {"type": "BlockStored", "block_hashes": [block], "parent_block_hash": None, "token_ids": [block],
                 "block_size": 1}  # fmt: skip
        self.history.append(msgspec.msgpack.encode([self.clock, [event], rank]))
        if not lose:
            sequence = (len(self.history) - 1).to_bytes(8, "big")
            await self.publisher.send_multipart([b"kv-events", sequence, self.history[-1]])


class Blocks:
    """A sink of block hashes."""

    def __init__(self) -> None:
        self.held: set[Any] = set()

    def apply(self, event: KVCacheEvent) -> None:
        """Keep what is stored."""
        assert isinstance(event, BlockStored)
        self.held.update(event.block_hashes)

    def clear(self) -> None:
        """Drop everything."""
        self.held.clear()

    async def become(self, blocks: set[int]) -> None:
        """Return when exactly these are held."""
        await until(lambda: self.held == blocks)


async def until(condition: Callable[[], bool]) -> None:
    """Return when a condition holds; the test fails after ten seconds."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def following(subscriber: KvSubscriber) -> AsyncIterator[None]:
    """Run a subscriber for as long as the block lasts."""
    task = asyncio.create_task(subscriber.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_history_then_live_batches(tmp_path: Path) -> None:
    """What was published before the subscription is replayed; what comes after arrives by itself."""
    blocks = Blocks()
    async with FakeEngine(tmp_path) as engine:
        await engine.store(1)
        subscriber = KvSubscriber(engine.events_at, engine.replay_at, blocks)
        async with following(subscriber):
            await blocks.become({1})
            await engine.store(2)
            await blocks.become({1, 2})


async def test_lost_batches_are_replayed(tmp_path: Path) -> None:
    """A gap in the numbers is filled before what follows it is applied."""
    blocks = Blocks()
    async with FakeEngine(tmp_path) as engine:
        subscriber = KvSubscriber(engine.events_at, engine.replay_at, blocks)
        async with following(subscriber):
            await subscriber.synchronised.wait()
            await engine.store(1)
            await engine.store(2, lose=True)
            await engine.store(3)
            await blocks.become({1, 2, 3})
    assert subscriber.follower.statistics().gaps == 1


async def test_a_restarted_engine_is_followed_from_its_beginning(tmp_path: Path) -> None:
    """The engine goes and another comes at the same address: the first one's blocks are gone, without any event."""
    blocks = Blocks()
    engine = FakeEngine(tmp_path)
    subscriber = KvSubscriber(engine.events_at, engine.replay_at, blocks)
    async with following(subscriber):
        async with engine:
            await subscriber.synchronised.wait()
            for block in (1, 2, 3):
                await engine.store(block)
            await blocks.become({1, 2, 3})
        async with engine:
            await blocks.become(set())
            await engine.store(7)
            await blocks.become({7})


async def test_nothing_is_believed_of_an_engine_that_is_away(tmp_path: Path) -> None:
    """Its blocks are forgotten when it goes, not when it comes back: a request may reach its next life before its events."""
    engine, blocks = FakeEngine(tmp_path), Blocks()
    subscriber = KvSubscriber(engine.events_at, engine.replay_at, blocks)
    async with following(subscriber):
        async with engine:
            await engine.store(1)
            await blocks.become({1})
        await blocks.become(set())
        assert not subscriber.synchronised.is_set()
        async with engine:
            await engine.store(2, lose=True)
            await blocks.become({2})


async def test_without_a_replay_endpoint_a_gap_forgets(tmp_path: Path) -> None:
    """Nothing is believed of a worker whose lost batches cannot be had."""
    blocks = Blocks()
    async with FakeEngine(tmp_path) as engine:
        subscriber = KvSubscriber(engine.events_at, None, blocks)
        async with following(subscriber):
            await subscriber.synchronised.wait()
            await engine.store(1)
            await engine.store(2, lose=True)
            await engine.store(3)
            await blocks.become({3})


async def test_a_silent_replay_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that does not answer a replay is forgotten, and followed on."""
    monkeypatch.setattr(kv_subscriber, "REPLAY_TIMEOUT", 0.05)
    blocks = Blocks()
    async with FakeEngine(tmp_path) as engine:
        subscriber = KvSubscriber(engine.events_at, f"ipc://{tmp_path}/nobody", blocks)
        async with following(subscriber):
            await subscriber.synchronised.wait()
            await engine.store(1, lose=True)
            await engine.store(2)
            await blocks.become({2})


async def test_only_the_ranks_own_batches_are_taken(tmp_path: Path) -> None:
    """Where ranks share an address, another's batches are neither blocks nor gaps of this one."""
    blocks = Blocks()
    async with FakeEngine(tmp_path) as engine:
        subscriber = KvSubscriber(engine.events_at, None, blocks, dp_rank=1)
        async with following(subscriber):
            await subscriber.synchronised.wait()
            await engine.store(7, rank=0)
            engine.history.clear()  # rank 1 numbers its own from 0
            await engine.store(1, rank=1)
            await engine.store(2, rank=1)
            await blocks.become({1, 2})
    assert subscriber.follower.statistics().gaps == 0


async def test_unreadable_messages_are_survived(tmp_path: Path) -> None:
    """Noise on the socket is logged and treated as loss."""
    blocks = Blocks()
    async with FakeEngine(tmp_path) as engine:
        subscriber = KvSubscriber(engine.events_at, engine.replay_at, blocks)
        async with following(subscriber):
            await subscriber.synchronised.wait()
            for frames in ([b"noise"], [b"t", b"short", b""], [b"t", bytes(8), b"\xc1"]):
                await engine.publisher.send_multipart(frames)
            await engine.store(1)
            await blocks.become({1})


async def test_a_replay_starts_where_it_is_asked_to(tmp_path: Path) -> None:
    """The wire form of the request and of its end."""
    async with FakeEngine(tmp_path) as engine:
        for block in range(4):
            await engine.store(block)
        batches = await request_replay(zmq.asyncio.Context.instance(), engine.replay_at, 2)
    assert [batch.sequence for batch in batches] == [2, 3]
