"""KV events: both wire forms, and a numbered stream followed through loss, disorder, restart and replay."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreword.core.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent
from foreword.errors import WorkerError
from foreword.gateway.kv_events import EventBatch, EventFollower, decode_batch


def payload(*events: Any) -> bytes:
    """A batch as vLLM packs it."""
    return msgspec.msgpack.encode([12.5, list(events), 0])


STORED = BlockStored([7, 2**64 - 1], 3, [1, 2, 3, 4], 2)


@pytest.mark.parametrize(
    "raw, event",
    [
        (
            {"type": "BlockStored", "block_hashes": [7, 2**64 - 1], "parent_block_hash": 3, "token_ids": [1, 2, 3, 4],
             "block_size": 2, "lora_id": None, "lora_name": None, "medium": "GPU", "extra_keys": None, "group_idx": 0},
            STORED,
        ),
        (["BlockStored", [7, 2**64 - 1], 3, [1, 2, 3, 4], 2, None], STORED),
        (["BlockStored", [7, 2**64 - 1], 3, [1, 2, 3, 4], 2, None, "GPU", None], STORED),
        ({"type": "BlockRemoved", "block_hashes": [b"\x01" * 32], "medium": "GPU"}, BlockRemoved([b"\x01" * 32])),
        (["BlockRemoved", [7]], BlockRemoved([7])),
        ({"type": "AllBlocksCleared"}, AllBlocksCleared()),
        (["AllBlocksCleared"], AllBlocksCleared()),
    ],
)  # fmt: skip
def test_both_wire_forms_give_one_event(raw: Any, event: KVCacheEvent) -> None:
    """Maps of 0.32 and arrays of older releases are the same events."""
    assert decode_batch(4, payload(raw)) == EventBatch(4, 12.5, (event,), 0)


def test_extra_keys_and_adapters_come_through() -> None:
    """A salt stands in the extra keys of the first block."""
    raw = {"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": None, "token_ids": [5, 6], "block_size": 1,
           "lora_name": "ada", "extra_keys": [["tenant"], None]}  # fmt: skip
    (event,) = decode_batch(0, payload(raw)).events
    assert event == BlockStored([1, 2], None, [5, 6], 1, "ada", [("tenant",), None])


@pytest.mark.parametrize(
    "raw",
    [
        {"type": "BlockRemoved", "block_hashes": [1], "medium": "CPU"},
        {"type": "BlockRemoved", "block_hashes": [1], "group_idx": 1},
        {"type": "SomethingNew", "field": 1},
        ["SomethingNew", 1],
    ],
)
def test_what_an_index_has_no_use_for_is_left_out(raw: Any) -> None:
    """Other tiers, other groups of layers, and events added by later releases."""
    assert decode_batch(0, payload(raw)).events == ()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(1),
        msgspec.msgpack.encode([1.0]),
        payload({"no": "type"}),
        payload([]),
        payload(
            {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None, "token_ids": [1], "block_size": 2}
        ),
        payload({"type": "BlockRemoved"}),
        payload(["BlockRemoved", [[1]]]),
        payload(["BlockRemoved", "x"]),
        payload(["BlockStored", [1], None, [-1, -1], 2, None]),
        payload(["BlockStored", [1], None, [2**32, 1], 2, None]),
        payload(["BlockStored", [1], None, [1.5, 1], 2, None]),
        payload(["BlockStored", [1], None, "ab", 2, None]),
        payload(["BlockStored", [[1]], None, [1, 1], 2, None]),
        payload(["BlockStored", [1], [3], [1, 1], 2, None]),
        payload(["BlockStored", [], None, [], 0, None]),
        payload(["BlockStored", [], None, [], 2**62, None]),
        payload(7),
    ],
)
def test_an_unreadable_batch_is_a_worker_error(data: bytes) -> None:
    """Whatever a worker sends, the follower's owner gets one kind of error."""
    with pytest.raises(WorkerError, match="Batch 3"):
        decode_batch(3, data)


class HashSet:
    """A sink that holds hashes."""

    def __init__(self) -> None:
        self.held: set[Any] = set()

    def apply(self, event: KVCacheEvent) -> None:
        """Keep, drop or clear."""
        if isinstance(event, BlockStored):
            self.held.update(event.block_hashes)
        elif isinstance(event, BlockRemoved):
            self.held.difference_update(event.block_hashes)
        else:
            self.held.clear()

    def clear(self) -> None:
        """Drop everything."""
        self.held.clear()


class Publisher:
    """A worker that numbers its batches and remembers the last ``history`` of them."""

    def __init__(self, history: int = 1000) -> None:
        self.history = history
        self.time = 0.0
        self.restart()

    def restart(self) -> None:
        """Begin again from sequence 0, holding nothing."""
        self.held: set[int] = set()
        self.batches: list[EventBatch] = []

    def store(self, block: int) -> EventBatch:
        """Store one block."""
        self.held.add(block)
        return self._publish(BlockStored([block], None, [block], 1))

    def remove(self, block: int) -> EventBatch:
        """Remove one block."""
        self.held.discard(block)
        return self._publish(BlockRemoved([block]))

    def _publish(self, event: KVCacheEvent) -> EventBatch:
        self.time += 1
        batch = EventBatch(len(self.batches), self.time, (event,))
        self.batches.append(batch)
        return batch

    def replay(self, start: int) -> list[EventBatch]:
        """What is left of the history from a sequence on."""
        return [batch for batch in self.batches[-self.history :] if batch.sequence >= start]


def settle(follower: EventFollower, publisher: Publisher) -> None:
    """What the owner of a connection does when the follower wants a replay."""
    for _ in range(4):
        follower.check_integrity()
        if not follower.replayed(publisher.replay(follower.replay_from)):
            return
    follower.give_up()


def make() -> tuple[EventFollower, HashSet, Publisher]:
    """A follower of a new publisher."""
    sink, publisher = HashSet(), Publisher()
    follower = EventFollower(sink)
    settle(follower, publisher)
    return follower, sink, publisher


def test_batches_in_order_need_no_replay() -> None:
    """The usual case."""
    follower, sink, publisher = make()
    assert [follower.receive(publisher.store(block)) for block in range(3)] == [False, False, False]
    assert sink.held == {0, 1, 2}


def test_a_gap_is_replayed() -> None:
    """A lost removal is made good before anything later is applied."""
    follower, sink, publisher = make()
    follower.receive(publisher.store(1))
    publisher.remove(1)  # lost
    assert follower.receive(publisher.store(2))
    assert sink.held == {1}  # held back: the index never runs ahead of a gap
    settle(follower, publisher)
    assert sink.held == {2}
    assert follower.statistics().gaps == 1


def test_without_a_replay_the_worker_is_forgotten() -> None:
    """No replay to be had: nothing that was known is kept, and what comes is applied."""
    follower, sink, publisher = make()
    follower.receive(publisher.store(1))
    publisher.remove(1)  # lost
    follower.receive(publisher.store(2))
    follower.give_up()
    assert sink.held == {2}
    assert not follower.receive(publisher.store(3))


def test_history_out_of_reach_is_a_fresh_start() -> None:
    """A replay that begins after the gap cannot fill it."""
    follower, sink, publisher = make()
    follower.receive(publisher.store(1))
    publisher.history = 2
    for block in (2, 3, 4):
        publisher.store(block)  # lost
    assert follower.receive(publisher.store(5))
    settle(follower, publisher)
    assert sink.held == {4, 5}


def test_duplicates_change_nothing() -> None:
    """A batch seen before is dropped by its number and its time."""
    follower, sink, publisher = make()
    first = publisher.store(1)
    follower.receive(first)
    follower.receive(publisher.remove(1))
    assert not follower.receive(first)
    assert (sink.held, follower.statistics().duplicates) == (set(), 1)


def test_a_restart_at_zero_clears() -> None:
    """A later batch with an earlier number is another life of the worker."""
    follower, sink, publisher = make()
    for block in range(5):
        follower.receive(publisher.store(block))
    publisher.restart()
    assert not follower.receive(publisher.store(9))
    assert sink.held == {9}


def test_a_restart_noticed_late_is_replayed_from_zero() -> None:
    """The first batch seen of the new life is not its first."""
    follower, sink, publisher = make()
    for block in range(5):
        follower.receive(publisher.store(block))
    publisher.restart()
    publisher.store(10)
    assert follower.receive(publisher.store(11))
    settle(follower, publisher)
    assert sink.held == {10, 11}


@pytest.mark.parametrize("lost", [0, 2, 9])
def test_a_restart_is_noticed_by_the_replay_after_a_reconnection(lost: int) -> None:
    """Whatever number the new life has reached, the last batch applied is not in its history."""
    follower, sink, publisher = make()
    for block in range(5):
        follower.receive(publisher.store(block))
    publisher.restart()
    for block in range(20, 20 + lost):
        publisher.store(block)
    settle(follower, publisher)
    assert sink.held == publisher.held
    follower.receive(publisher.store(50))
    assert sink.held == publisher.held


def test_reset_forgets_numbers_too() -> None:
    """After a reset the next batch is held until a replay says where it stands."""
    follower, sink, publisher = make()
    follower.receive(publisher.store(1))
    follower.reset()
    assert sink.held == set()
    assert follower.receive(publisher.store(2))
    settle(follower, publisher)
    assert sink.held == {1, 2}


ACTIONS = st.one_of(
    st.tuples(st.just("store"), st.integers(0, 9)),
    st.tuples(st.just("remove"), st.integers(0, 9)),
    st.tuples(st.just("restart"), st.just(0)),
    st.tuples(st.just("reconnect"), st.just(0)),
)
FATES = st.sampled_from(["arrive", "arrive", "arrive", "drop", "twice", "late"])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(ACTIONS, FATES), max_size=40), st.integers(1, 50))
def test_the_index_recovers_to_the_truth(steps: list[tuple[tuple[str, int], str]], history: int) -> None:
    """Batches dropped, doubled, reordered, and workers restarted: after one clean batch the sink is the worker's own set.

    Where history is out of reach the sink may know less than the worker holds; it never knows more.
    """
    sink, publisher = HashSet(), Publisher(history)
    follower = EventFollower(sink)
    settle(follower, publisher)
    late: list[EventBatch] = []
    lost_history = False
    for (action, block), fate in [*steps, (("store", 99), "arrive")]:
        if action == "restart":
            publisher.restart()
            late.clear()  # a new life is a new connection
            settle(follower, publisher)
            continue
        if action == "reconnect":
            settle(follower, publisher)
            continue
        batch = publisher.store(block) if action == "store" else publisher.remove(block)
        arriving = {"arrive": [batch, *late], "drop": [], "twice": [batch, batch], "late": []}[fate]
        if fate == "arrive":
            late.clear()
        elif fate == "late":
            late.append(batch)
        for arrived in arriving:
            if follower.receive(arrived):
                settle(follower, publisher)
            follower.check_integrity()
        lost_history = lost_history or len(publisher.batches) > publisher.history
        if fate in ("arrive", "twice"):
            assert sink.held <= publisher.held
            assert lost_history or sink.held == publisher.held
