"""The embedded engine's events on the wire: our own subscriber follows them, and vLLM's classes read them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from tests.gateway.test_kv_subscriber import following, until

from foreword.core.cache_request import CacheRequest
from foreword.core.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent
from foreword.core.extra_keys import CacheKeys
from foreword.core.hashing import BlockHasher, event_hash
from foreword.core.prefix_cache import PrefixCache
from foreword.core.prefix_index import PrefixIndex
from foreword.errors import ConfigError
from foreword.gateway.kv_publisher import KvEventsConfig, KvPublisher, parse_config, wire_event
from foreword.gateway.kv_subscriber import KvSubscriber, request_replay
from foreword.gateway.prefix_view import PrefixView

STORED = BlockStored(
    [bytes(31) + b"\1", bytes(24) + b"\xff" * 8], None, [1, 2, 3, 4], 2, None, [("salt",), None], "GPU"
)
REMOVED = BlockRemoved([bytes(31) + b"\1"], "GPU")


@pytest.fixture
def config(tmp_path: Path) -> KvEventsConfig:
    """Sockets in a folder, with room for four batches to replay."""
    return KvEventsConfig(
        enable_kv_cache_events=True,
        endpoint=f"ipc://{tmp_path}/events",
        replay_endpoint=f"ipc://{tmp_path}/replay",
        buffer_steps=4,
        topic="kv-events",
    )


@pytest.fixture
def publisher(config: KvEventsConfig) -> Iterator[KvPublisher]:
    """A publisher whose clock shows 7."""
    made = KvPublisher(config, clock=lambda: 7.0)
    yield made
    made.close()


def test_events_have_vllms_form() -> None:
    """Maps with a type, hashes as unsigned 64 bits, fields without a default always there."""
    assert wire_event(STORED) == {
        "type": "BlockStored",
        "block_hashes": [1, 2**64 - 1],
        "parent_block_hash": None,
        "token_ids": [1, 2, 3, 4],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [("salt",), None],
        "group_idx": 0,
    }
    assert wire_event(REMOVED) == {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU", "group_idx": 0}
    assert wire_event(AllBlocksCleared()) == {"type": "AllBlocksCleared"}


async def test_messages_are_numbered_from_zero(publisher: KvPublisher, config: KvEventsConfig) -> None:
    """Topic, number, and the batch with its time and rank."""
    with zmq.asyncio.Context.instance().socket(zmq.SUB) as socket:
        socket.subscribe(b"kv-events")
        socket.connect(config.endpoint)
        await asyncio.sleep(0.2)  # a subscription takes a moment, and nobody says when
        for _ in range(2):
            publisher.publish([REMOVED])
        async with asyncio.timeout(5):
            messages = [await socket.recv_multipart() for _ in range(2)]
    assert [frames[:2] for frames in messages] == [[b"kv-events", n.to_bytes(8, "big")] for n in range(2)]
    assert msgspec.msgpack.decode(messages[0][2]) == [7.0, [wire_event(REMOVED)], 0]


async def test_replay_keeps_the_last_batches(publisher: KvPublisher, config: KvEventsConfig) -> None:
    """From the number asked for on, as far as batches are kept."""
    for _ in range(6):
        publisher.publish([REMOVED])
    await until(lambda: publisher.statistics().published == 6)
    context = zmq.asyncio.Context.instance()
    assert config.replay_endpoint
    for start, numbers in ((0, [2, 3, 4, 5]), (4, [4, 5]), (9, [])):
        batches = await request_replay(context, config.replay_endpoint, start)
        assert [batch.sequence for batch in batches] == numbers
    assert publisher.statistics().kept == 4


def traffic(cache: PrefixCache, number: int) -> list[KVCacheEvent]:
    """A request comes and goes; its events."""
    request = CacheRequest(str(number), [number % 3] * 4 + [number] * 5, CacheKeys())
    computed = cache.get_computed_blocks(request)
    cache.allocate_slots(request, 9 - computed.num_tokens, computed)
    cache.commit(request, 9)
    cache.free(request)
    return cache.take_events()


async def test_our_subscriber_follows(publisher: KvPublisher, config: KvEventsConfig) -> None:
    """History, live batches, evictions and a clear: the index behind the subscriber holds what the cache holds."""
    cache = PrefixCache(6, BlockHasher(2), enable_events=True)
    view = PrefixView()
    view.add_worker("w")
    publisher.publish(traffic(cache, 0))
    subscriber = KvSubscriber(config.endpoint, config.replay_endpoint, view.follow("w"))

    def holds(index: PrefixIndex, number: int) -> bool:
        prompt = [number % 3] * 4 + [number] * 5
        expected = len(cache.find_longest_cache_hit(cache.hasher.hash_tokens(prompt), 4)) * 2
        return index.match(prompt).get("w", 0) == expected

    async with following(subscriber):
        await until(subscriber.synchronised.is_set)
        for number in range(1, 30):
            publisher.publish(traffic(cache, number))
        await until(lambda: all(holds(view.index, number) for number in range(30)))
        cache.reset()
        publisher.publish(cache.take_events())
        await until(lambda: all(holds(view.index, number) for number in range(30)))
        assert view.index.match([2] * 4 + [29] * 5) == {}


async def test_a_gap_is_replayed(config: KvEventsConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that a subscriber never got are replayed when the next one shows that they are missing."""
    view = PrefixView()
    view.add_worker("w")
    publisher = KvPublisher(config)
    subscriber = KvSubscriber(config.endpoint, config.replay_endpoint, view.follow("w"))
    cache = PrefixCache(20, BlockHasher(2), enable_events=True)
    async with following(subscriber):
        await until(subscriber.synchronised.is_set)
        monkeypatch.setattr(subscriber, "_take", lambda _: False)  # lost on the way
        publisher.publish(traffic(cache, 0))
        await until(lambda: publisher.statistics().published == 1)
        await asyncio.sleep(0.2)
        monkeypatch.undo()
        publisher.publish(traffic(cache, 1))
        await until(lambda: view.index.match([0] * 4 + [0] * 5) == {"w": 8})
        await until(lambda: view.index.match([1] * 4 + [1] * 5) == {"w": 8})
    publisher.close()
    assert subscriber.follower.statistics().gaps == 1


@pytest.mark.parametrize(
    "text,words",
    [
        ("{", "truncated"),
        ('{"endpoints": "tcp://*:1"}', "endpoints"),
        ('{"publisher": "kafka"}', "kafka"),
        ('{"hwm": "many"}', "hwm"),
        ('{"buffer_steps": -1}', "buffer_steps"),
        ('{"hwm": 99999999999}', "hwm"),
    ],
)
def test_a_wrong_configuration_is_refused(text: str, words: str) -> None:
    """The message says what is wrong and shows a right one."""
    with pytest.raises(ConfigError, match=words) as caught:
        parse_config(text)
    assert "enable_kv_cache_events" in caught.value.hint


def test_vllms_configuration_is_taken() -> None:
    """The JSON of vLLM's own documentation."""
    text = '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558","topic":"kv-events"}'
    found = parse_config(text)
    assert (found.publishes, found.replay_endpoint, found.buffer_steps) == (True, "tcp://*:5558", 10_000)
    assert not parse_config("{}").publishes


def test_a_taken_address_is_refused(config: KvEventsConfig) -> None:
    """An address nobody can bind is said before anything is served."""
    wrong = msgspec.structs.replace(config, endpoint="ipc:///no/such/folder/socket")
    with pytest.raises(ConfigError, match="/no/such/folder"):
        KvPublisher(wrong)
    with pytest.raises(ConfigError, match="65536 has no port"):
        KvPublisher(msgspec.structs.replace(config, replay_endpoint="tcp://127.0.0.1:65536"))


def test_hashes_are_the_low_bits() -> None:
    """What the cache calls a block is what the wire calls it, cut to 64 bits."""
    cache = PrefixCache(20, BlockHasher(2), enable_events=True)
    event: Any = traffic(cache, 1)[0]
    assert wire_event(event)["block_hashes"] == [event_hash(block_hash) for block_hash in event.block_hashes]
