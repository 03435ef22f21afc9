"""Random lives of many requests, against a naive twin, with fake KV that depends on every token before it."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.core.naive_prefix_cache import NaivePrefixCache, NaiveRequest, Prefix

from foreword.core.cache_request import CacheRequest
from foreword.core.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored
from foreword.core.extra_keys import CacheKeys, frame_salt
from foreword.core.hashing import BlockHasher
from foreword.core.prefix_cache import PrefixCache
from foreword.core.retention import Retention

SIZE, BLOCKS = 2, 8
IDLE, MAX_AGE = 10.0, 25.0
SALTS = [None, frame_salt("org", None), frame_salt("org", "s")]


@dataclass(eq=False)
class Pair:
    """One request, as the cache and as the twin know it; ``written`` tokens have KV, committed or not."""

    real: CacheRequest
    naive: NaiveRequest
    written: int = 0


def pair_of(tokens: list[int], salt: str | None) -> Pair:
    """A request with this prompt."""
    return Pair(CacheRequest("r", list(tokens), CacheKeys(salt)), NaiveRequest(list(tokens), salt))


@dataclass
class FakeKV:
    """What a model would write: at each slot, everything that the value depends on."""

    slots: dict[tuple[int, int], Prefix] = field(default_factory=dict)

    def write(self, request: CacheRequest, start: int, end: int) -> None:
        """Tokens ``start`` to ``end`` go through the model."""
        for position in range(start, end):
            self.slots[self.slot(request, position)] = self.value(request, position)

    def slot(self, request: CacheRequest, position: int) -> tuple[int, int]:
        """Where a token's KV is."""
        return request.block_table[position // SIZE].block_id, position % SIZE

    def value(self, request: CacheRequest, position: int) -> Prefix:
        """What a token's KV depends on."""
        return request.keys.cache_salt, tuple(request.token_ids[: position + 1])


PROMPTS = st.tuples(st.sampled_from([0, 0, 2, 4, 6]), st.lists(st.integers(0, 1), min_size=1, max_size=7)).map(
    lambda parts: [0] * parts[0] + parts[1]
)
WHICH = st.integers(0, 63)


class PrefixCacheMachine(RuleBasedStateMachine):
    """The engine's calls in any order the rules allow."""

    merge_copies = True

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        retention = Retention(IDLE, MAX_AGE)
        self.cache = PrefixCache(
            BLOCKS, BlockHasher(SIZE), retention=retention, enable_events=True, merge_copies=self.merge_copies
        )
        self.naive = NaivePrefixCache(BLOCKS, SIZE, IDLE, MAX_AGE, self.merge_copies)
        self.kv = FakeKV()
        self.waiting: list[Pair] = []
        self.running: list[Pair] = []
        self.followed: Counter[BlockHash] = Counter()
        self.prefix_of: dict[bytes, Prefix] = {}

    @rule(tokens=PROMPTS, salt=st.sampled_from(SALTS), which=WHICH)
    def arrive(self, tokens: list[int], salt: str | None, which: int) -> None:
        """A prompt; often the one of a request that is there already, so that both compute it."""
        if which % 3 == 0 and self.running:
            twin = self.running[which % len(self.running)]
            tokens, salt = [*twin.naive.tokens, which % 2][: BLOCKS * SIZE], twin.naive.salt
        self.waiting.append(pair_of(tokens, salt))

    @precondition(lambda self: self.waiting)
    @rule(which=WHICH, num_new=st.integers(1, 16))
    def admit(self, which: int, num_new: int) -> None:
        """The scheduler starts one; it need not heed what is pending."""
        pair = self.waiting.pop(which % len(self.waiting))
        if not self.started(pair, num_new):
            self.waiting.append(pair)

    @rule(tokens=PROMPTS, salt=st.sampled_from(SALTS), number=st.integers(1, 3), ends=st.booleans())
    def race(self, tokens: list[int], salt: str | None, number: int, *, ends: bool) -> None:
        """Requests of one prompt run side by side: all start, as far as there is room, before the first commits."""
        pairs = [pair for _ in range(number) if self.started(pair := pair_of(tokens, salt), 16)]
        for pair in pairs:
            self.write_and_commit(self.running.index(pair), 0)
        self.learn_prefixes()
        for pair in pairs if ends else []:
            self.running.remove(pair)
            self.end(pair)

    def started(self, pair: Pair, num_new: int) -> bool:
        """Look up and allocate up to ``num_new`` tokens; whether both agreed that there is room."""
        computed = self.cache.get_computed_blocks(pair.real, self.now)
        hits = self.naive.lookup(pair.naive, self.now)
        assert len(computed.blocks) == len(hits)
        assert computed.num_tokens < len(pair.real.token_ids)
        if computed.pending:
            assert self.naive.pending(pair.naive, len(hits))
        num_new = min(num_new, len(pair.real.token_ids) - computed.num_tokens)
        expected = self.naive.allocate(pair.naive, num_new, hits, self.now)
        assert self.cache.can_allocate(pair.real, num_new, computed) == expected
        assert self.cache.allocate_slots(pair.real, num_new, computed, self.now) == expected
        if expected:
            pair.written = pair.real.num_computed_tokens
            self.running.append(pair)
        return expected

    def end(self, pair: Pair) -> None:
        """Its blocks are given back."""
        self.cache.free(pair.real, self.now)
        self.naive.free(pair.naive, self.now)

    @precondition(lambda self: self.running)
    @rule(which=WHICH, num_new=st.integers(1, 6), decoded=st.lists(st.integers(0, 1), max_size=3))
    def grow(self, which: int, num_new: int, decoded: list[int]) -> None:
        """Tokens are sampled, and blocks allocated for more tokens than are computed."""
        pair = self.running[which % len(self.running)]
        if len(pair.real.token_ids) + len(decoded) <= BLOCKS * SIZE:
            pair.real.token_ids += decoded
            pair.naive.tokens += decoded
        num_new = min(num_new, len(pair.real.token_ids) - pair.real.num_computed_tokens)
        expected = self.naive.allocate(pair.naive, num_new, [], self.now)
        assert self.cache.allocate_slots(pair.real, num_new, now=self.now) == expected

    @precondition(lambda self: self.running)
    @rule(which=WHICH)
    def write(self, which: int) -> None:
        """The model runs; nothing is committed yet."""
        pair = self.running[which % len(self.running)]
        end = min(len(pair.real.token_ids), len(pair.real.block_table) * SIZE)
        self.kv.write(pair.real, pair.written, end)
        pair.written = max(pair.written, end)

    @precondition(lambda self: self.running)
    @rule(which=WHICH, lag=st.sampled_from([0, 0, 1, 3]))
    def write_and_commit(self, which: int, lag: int) -> None:
        """The model runs and what it wrote is committed, all or nearly all."""
        self.write(which)
        pair = self.running[which % len(self.running)]
        computed = max(pair.real.num_computed_tokens, pair.written - lag)
        self.cache.commit(pair.real, computed, self.now)
        self.naive.commit(pair.naive, computed, self.now)

    @precondition(lambda self: self.running)
    @rule(which=WHICH)
    def free(self, which: int) -> None:
        """A request ends, or is preempted and waits again."""
        pair = self.running.pop(which % len(self.running))
        self.end(pair)
        if which % 2:
            self.waiting.append(pair)

    @precondition(lambda self: self.running)
    @rule(which=WHICH, num_tokens=st.integers(2, 12), life=st.floats(1, 40))
    def pin(self, which: int, num_tokens: int, life: float) -> None:
        """Part of a running request's prompt is kept."""
        pair = self.running[which % len(self.running)]
        self.expire()
        self.cache.pin(pair.real, num_tokens, self.now + life)
        self.naive.pin(pair.naive, num_tokens, self.now + life)

    @rule(seconds=st.floats(0, 12))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds

    @rule()
    def expire(self) -> None:
        """What is over is forgotten."""
        assert self.cache.expire(self.now) == self.naive.expire(self.now)

    @precondition(lambda self: self.cache.statistics().held > 3)
    @rule(salt=st.sampled_from(SALTS))
    def reset(self, salt: str | None) -> None:
        """One salt, one organisation, or everything."""
        if salt == SALTS[2]:
            emptied = self.cache.reset(organisation="org", cache_salt="s")
            assert emptied.num_blocks == self.naive.reset(salt, everything=False)
        elif salt == SALTS[1]:
            emptied = self.cache.reset(organisation="org")
            gone = self.naive.reset(salt, everything=False) + self.naive.reset(SALTS[2], everything=False)
            assert emptied.num_blocks == gone
        else:
            assert self.cache.reset().num_blocks == self.naive.reset(None, everything=True)

    @invariant()
    def both_are_sound_and_agree(self) -> None:
        """Findable prefixes and the order of reuse are the twin's."""
        self.cache.check_integrity()
        self.learn_prefixes()
        pool = self.cache.pool
        found = Counter(self.prefix_of[block.block_hash] for block in pool.cached_blocks() if block.block_hash)
        assert found == self.naive.held()
        real_order = [b.block_hash and self.prefix_of[b.block_hash] for b in (*pool._free, *pool._free_pinned)]
        naive_order = [self.naive.blocks[i].prefix for i in self.naive.free_order + self.naive.pinned_order]
        assert real_order == naive_order

    @invariant()
    def every_token_computed_has_its_own_kv(self) -> None:
        """Whatever was shared, merged or reused."""
        for pair in self.running:
            for position in range(pair.real.num_computed_tokens):
                assert self.kv.slots.get(self.kv.slot(pair.real, position)) == self.kv.value(pair.real, position)

    @invariant()
    def events_tell_what_is_held(self) -> None:
        """Whoever replays them, counting copies, holds the same hashes."""
        for event in self.cache.take_events():
            if isinstance(event, BlockStored):
                assert not (self.merge_copies and any(self.followed[h] for h in event.block_hashes))
                assert len(event.token_ids) == SIZE * len(event.block_hashes)
                self.followed.update(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                self.followed.subtract(event.block_hashes)
                assert min(self.followed.values()) >= 0
            elif isinstance(event, AllBlocksCleared):
                self.followed.clear()
        assert +self.followed == Counter(block.block_hash for block in self.cache.pool.cached_blocks())

    @invariant()
    def statistics_add_up(self) -> None:
        """What came is there or went."""
        seen = self.cache.statistics()
        assert seen.queries == seen.hits + seen.misses
        assert seen.stored - seen.evicted == seen.held
        assert seen.evicted >= seen.expired + seen.reset

    def learn_prefixes(self) -> None:
        """No two prefixes have one hash."""
        for pair in self.waiting + self.running:
            for i, block_hash in enumerate(pair.real.block_hashes):
                prefix = self.naive.prefix(pair.naive, i)
                assert self.prefix_of.setdefault(block_hash, prefix) == prefix


class CopiesMachine(PrefixCacheMachine):
    """The same with every copy of a block kept."""

    merge_copies = False


def explore(machine: type[PrefixCacheMachine], examples: int, steps: int) -> None:
    """Run a machine."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


MACHINES = pytest.mark.parametrize("machine", [PrefixCacheMachine, CopiesMachine])


@MACHINES
def test_any_life_of_requests_agrees_with_the_naive_twin(machine: type[PrefixCacheMachine]) -> None:
    """Hits, free order, findable prefixes, events and every token's KV are the twin's after each step."""
    explore(machine, 100, 50)


@pytest.mark.slow
@MACHINES
def test_any_long_life_of_requests_agrees_with_the_naive_twin(machine: type[PrefixCacheMachine]) -> None:
    """The same for minutes."""
    explore(machine, int(os.environ.get("FOREWORD_EXAMPLES", "4000")), 80)
