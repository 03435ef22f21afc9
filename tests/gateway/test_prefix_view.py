"""The index behind the gateway is the workers' own cache: fed by their events over the wire, whatever becomes of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreword.core.cache_request import CacheRequest
from foreword.core.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent
from foreword.core.extra_keys import CacheKeys
from foreword.core.hashing import BlockHasher
from foreword.core.prefix_cache import PrefixCache
from foreword.gateway.kv_events import EventBatch, EventFollower, decode_batch
from foreword.gateway.prefix_view import PrefixView, Prompt

SIZE, BLOCKS = 2, 6
NAME = "worker"


class Engine:
    """A prefix cache of six blocks that publishes its events as vLLM does, and remembers the last ``history`` batches."""

    def __init__(self, history: int = 1000) -> None:
        self.history = history
        self.clock = 0.0
        self.restart()

    def restart(self) -> None:
        """Another life: nothing held, numbers from 0."""
        self.cache = PrefixCache(BLOCKS, BlockHasher(SIZE), enable_events=True)
        self.published: list[EventBatch] = []

    def run(self, tokens: list[int], salt: str | None) -> EventBatch | None:
        """Prefill one prompt and let it go; the batch that this step published, if it did."""
        request = CacheRequest("r", list(tokens), CacheKeys(salt))
        computed = self.cache.get_computed_blocks(request, 0.0)
        if self.cache.allocate_slots(request, len(tokens) - computed.num_tokens, computed, 0.0):
            self.cache.commit(request, len(tokens), 0.0)
        self.cache.free(request, 0.0)
        return self._publish()

    def reset(self) -> EventBatch | None:
        """Empty the cache."""
        self.cache.reset()
        return self._publish()

    def _publish(self) -> EventBatch | None:
        events = self.cache.take_events()
        if not events:
            return None
        self.clock += 1
        payload = msgspec.msgpack.encode([self.clock, [as_wire(event) for event in events], 0])
        self.published.append(decode_batch(len(self.published), payload))
        return self.published[-1]

    def replay(self, start: int) -> list[EventBatch]:
        """What is left of the history from a number on."""
        return [batch for batch in self.published[-self.history :] if batch.sequence >= start]

    def cached(self, tokens: list[int], salt: str | None) -> int:
        """What a request for this prompt would find."""
        return self.cache.get_computed_blocks(CacheRequest("r", list(tokens), CacheKeys(salt)), 0.0).num_tokens


def as_wire(event: KVCacheEvent) -> dict[str, Any]:
    """An event as vLLM 0.32 packs it: hashes cut to 64 bits."""

    def short(block_hash: Any) -> int:
        return int.from_bytes(block_hash[:8], "big")

    if isinstance(event, AllBlocksCleared):
        return {"type": "AllBlocksCleared"}
    if isinstance(event, BlockRemoved):
        return {"type": "BlockRemoved", "block_hashes": list(map(short, event.block_hashes)), "medium": "GPU"}
    assert isinstance(event, BlockStored)
    parent = event.parent_block_hash
    return {
        "type": "BlockStored",
        "block_hashes": list(map(short, event.block_hashes)),
        "parent_block_hash": None if parent is None else short(parent),
        "token_ids": list(event.token_ids),
        "block_size": event.block_size,
        "lora_name": None,
        "medium": "GPU",
        "extra_keys": event.extra_keys,
    }


PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=9)
SALTS = st.sampled_from([None, "acme", "globex"])
ACTIONS = st.one_of(
    st.tuples(st.just("run"), PROMPTS, SALTS),
    st.tuples(st.just("run"), PROMPTS, SALTS),
    st.tuples(st.just("run"), PROMPTS, SALTS),
    st.tuples(st.sampled_from(["reset", "restart", "reconnect"]), PROMPTS, SALTS),
)
FATES = st.sampled_from(["arrive", "arrive", "arrive", "drop", "twice", "late"])


class Follower:
    """The gateway's side: a view fed through a follower, which asks for replays as the subscriber does."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.view = PrefixView()
        self.view.add_worker(NAME)
        self.events = EventFollower(self.view.follow(NAME))
        self.synchronise()

    def take(self, batch: EventBatch) -> None:
        """A batch arrives."""
        if self.events.receive(batch):
            self.synchronise()
        self.events.check_integrity()
        self.view.index.check_integrity()

    def synchronise(self) -> None:
        """Replay until whole, or give up."""
        for _ in range(4):
            if not self.events.replayed(self.engine.replay(self.events.replay_from)):
                return
        self.events.give_up()

    def predicted(self, tokens: list[int], salt: str | None) -> int:
        """What the worker is foretold to report."""
        return self.view.look_up(Prompt(tokens, cache_salt=salt)).predicted.get(NAME, 0)


@settings(max_examples=200, deadline=None)
@given(st.lists(ACTIONS, max_size=30), st.lists(st.tuples(PROMPTS, SALTS), min_size=3, max_size=3))
def test_an_index_fed_by_events_is_the_cache(actions: list[Any], probes: list[Any]) -> None:
    """After every step, for any prompt under any salt: eviction, reset, restart and reconnection included."""
    engine = Engine()
    follower = Follower(engine)
    for action, tokens, salt in actions:
        batch = engine.run(tokens, salt) if action == "run" else None
        if action == "reset":
            batch = engine.reset()
        elif action == "restart":
            engine.restart()
        if action in ("restart", "reconnect"):
            follower.synchronise()
        if batch is not None:
            follower.take(batch)
        for probe, probe_salt in [*probes, (tokens, salt)]:
            assert follower.predicted(probe, probe_salt) == engine.cached(probe, probe_salt)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(ACTIONS, FATES), max_size=40), st.integers(1, 50), st.lists(PROMPTS, min_size=2, max_size=2))
def test_loss_never_leaves_a_block_that_is_gone(steps: list[Any], history: int, probes: list[list[int]]) -> None:
    """Batches dropped, doubled, reordered, numbers that begin again at 0: once a batch arrives, nothing gone is credited.

    While replays reach back far enough the index is the cache again; beyond that it may know less, never more.
    """
    engine = Engine(history)
    follower = Follower(engine)
    late: list[EventBatch] = []
    forgotten = False
    for (action, tokens, salt), fate in steps:
        if action in ("restart", "reconnect"):
            if action == "restart":
                engine.restart()
                late.clear()
            follower.synchronise()
            continue
        batch = engine.run(tokens, salt) if action == "run" else engine.reset()
        if batch is None:
            continue
        forgotten = forgotten or len(engine.published) > history
        if fate == "late":
            late.append(batch)
        for arrived in {"arrive": [batch, *late], "twice": [batch, batch]}.get(fate, []):
            follower.take(arrived)
        if fate == "arrive":
            late.clear()
        if fate in ("arrive", "twice"):
            for probe in [*probes, tokens]:
                predicted, cached = follower.predicted(probe, salt), engine.cached(probe, salt)
                assert predicted <= cached
                assert forgotten or predicted == cached


@pytest.mark.parametrize("notice", ["replay", "batch", "cleared"])
def test_a_cleared_workers_blocks_are_not_routed_to(notice: str) -> None:
    """However it comes to light that they are gone."""
    engine = Engine()
    follower = Follower(engine)
    prompt = [0, 1, 0, 1, 0]
    for _ in range(3):
        if (batch := engine.run(prompt, None)) is not None:
            follower.take(batch)
    assert follower.predicted(prompt, None) == 4
    if notice == "cleared":
        cleared = engine.reset()
        assert cleared is not None
        follower.take(cleared)
    else:
        engine.restart()
        first = engine.run([1, 1, 1], "other")
        assert first is not None
        follower.take(first) if notice == "batch" else follower.synchronise()
    assert follower.view.look_up(Prompt(prompt)).expected == {}
