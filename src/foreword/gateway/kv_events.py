"""KV events of remote workers: the wire forms, and following a numbered stream through loss, replay and restart.

Facts of the wire (vLLM 0.32): a batch is msgpack ``[time, [events], dp_rank]`` numbered from 0; events are maps with a
``type``, or in older releases arrays that begin with it. A cached hit says nothing, so a lost batch is never made good by
later ones: it is replayed, or what is known of the worker is dropped.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from foreword.core.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVCacheEvent
from foreword.core.prefix_index import MAX_BLOCK_SIZE
from foreword.errors import WorkerError

HASH_TYPES = frozenset({int, bytes})
DEVICE_MEDIA = frozenset({None, "GPU", "CPU_DEVICE"})
MAX_HELD = 10_000
"""Batches kept while one before them is missing."""
END = (-1).to_bytes(8, "big", signed=True)
"""The number that ends an answer to a replay."""


@dataclass(frozen=True, slots=True)
class EventBatch:
    """What a worker published at once: after one step of its scheduler.

    Attributes:
        time: the worker's clock, in seconds.
        dp_rank: the data-parallel rank that published it; None where it does not say.
    """

    sequence: int
    time: float
    events: tuple[KVCacheEvent, ...]
    dp_rank: int | None = None


class EventSink(Protocol):
    """Takes one worker's events in order: the index behind it holds what the worker holds."""

    def apply(self, event: KVCacheEvent) -> None:
        """Blocks were stored or removed, or all cleared."""

    def clear(self) -> None:
        """Forget everything: the worker restarted, or events were lost for good."""


def decode_batch(sequence: int, payload: bytes) -> EventBatch:
    """Decode the msgpack of one batch, in either form; raises WorkerError when it is neither."""
    try:
        time, raw_events, *rest = msgspec.msgpack.decode(payload)
        dp_rank = rest[0] if rest and isinstance(rest[0], int) else None
        events = tuple(event for raw in raw_events if (event := parse_event(raw)) is not None)
        return EventBatch(sequence, float(time), events, dp_rank)
    except (msgspec.DecodeError, TypeError, ValueError, KeyError, IndexError, OverflowError, RecursionError) as error:
        raise WorkerError(f"Batch {sequence} of KV events is not in a form known here: {error}.") from error


ARRAY_FIELDS = {
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
    "BlockRemoved": ("block_hashes", "medium"),
    "AllBlocksCleared": (),
}
"""The order of fields in the array form; releases only ever appended to it."""


def parse_event(raw: Any) -> KVCacheEvent | None:
    """One event from its map or array form; None for what a prefix index has no use for.

    That is a type added later, a tier other than the device's memory, or a group of layers that does not attend to the whole
    prompt (hybrid models publish one group a kind of attention, the full one first).
    """
    if isinstance(raw, dict):
        fields = raw
    else:
        fields = {"type": raw[0]} | dict(zip(ARRAY_FIELDS.get(raw[0], ()), raw[1:], strict=False))
    kind = fields["type"]
    if kind == "AllBlocksCleared":
        return AllBlocksCleared()
    if fields.get("medium") not in DEVICE_MEDIA or fields.get("group_idx"):
        return None
    if kind == "BlockRemoved":
        return BlockRemoved(_check_hashes(fields["block_hashes"]))
    return _parse_stored(fields) if kind == "BlockStored" else None


def _parse_stored(fields: dict[str, Any]) -> BlockStored:
    hashes, token_ids, block_size = _check_hashes(fields["block_hashes"]), fields["token_ids"], fields["block_size"]
    if not 0 < block_size <= MAX_BLOCK_SIZE or len(token_ids) != len(hashes) * block_size:
        raise ValueError(f"{len(hashes)} blocks of {block_size} with {len(token_ids)} tokens")
    array("I", token_ids)  # raises for what is no token id, before any of the batch is applied
    parent = fields["parent_block_hash"]
    extra_keys = fields.get("extra_keys")
    return BlockStored(
        hashes,
        parent if parent is None else _check_hashes([parent])[0],
        token_ids,
        block_size,
        fields.get("lora_name"),
        [tuple(keys) if keys else None for keys in extra_keys] if extra_keys else None,
    )


def _check_hashes(hashes: list[BlockHash]) -> list[BlockHash]:
    if not isinstance(hashes, list) or not HASH_TYPES.issuperset(map(type, hashes)):
        raise TypeError("a block hash is neither a number nor bytes")
    return hashes


@dataclass(frozen=True, slots=True)
class FollowerStatistics:
    """Counts since the start: batches and events applied, batches seen twice, gaps found, restarts, and times cleared."""

    batches: int
    events: int
    duplicates: int
    gaps: int
    restarts: int
    clears: int
    held: int


class EventFollower:
    """Applies numbered batches to a sink exactly once and in order, whatever order they come in.

    ``receive`` says when a replay is needed; whoever owns the connection then asks the worker for everything from
    ``replay_from`` on and hands it to ``replayed``, or calls ``give_up``. Until then later batches are held back: the sink
    never sees a batch before its predecessor.
    """

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._next: int | None = None  # None until the first synchronisation
        self._last_time = float("-inf")
        self._held: dict[int, EventBatch] = {}
        self._batches = self._events = self._duplicates = self._gaps = self._restarts = self._clears = 0

    @property
    def replay_from(self) -> int:
        """The sequence a replay starts at: the last batch applied, so that its time proves the worker is still the same."""
        return max((self._next or 0) - 1, 0)

    def receive(self, batch: EventBatch) -> bool:
        """Take a batch off the wire. Returns whether a replay is needed before more can be applied."""
        if self._next is not None and batch.sequence < self._next:
            return self._receive_old(batch)
        if batch.sequence == self._next:
            self._apply(batch)
            self._apply_held()
            return bool(self._held)
        if self._next is not None and not self._held:
            self._gaps += 1
        self._hold(batch)
        return True

    def replayed(self, batches: Sequence[EventBatch]) -> bool:
        """Take a worker's whole answer to a replay from ``replay_from``. Returns whether another replay is needed."""
        if self._is_another_life(batches):
            self._restart()
            if not batches or batches[0].sequence:
                return True
        if self._next is None or (batches and batches[0].sequence > self.replay_from):
            self._clear()  # the worker no longer has what is missing: go on from what it has
            self._next = batches[0].sequence if batches else min(self._held, default=0)
        self._apply_all(batches)
        self._apply_held()
        return bool(self._held)

    def give_up(self) -> None:
        """No replay is to be had: forget the worker's blocks and go on from the batches at hand."""
        self._clear()
        while self._held:
            self._next = min(self._held)
            self._apply_held()

    def reset(self) -> None:
        """Forget blocks, numbers and batches at hand: the next batch starts from nothing."""
        self._restart()
        self._next = None

    def _receive_old(self, batch: EventBatch) -> bool:
        if batch.time <= self._last_time:
            self._duplicates += 1
            return False
        self._restart()
        return self.receive(batch)

    def _is_another_life(self, batches: Sequence[EventBatch]) -> bool:
        """Whether the worker's history does not contain the last batch applied."""
        if not self._next:
            return False
        if not batches:
            return True
        first = batches[0]
        return first.sequence < self._next and first.time != self._last_time

    def _restart(self) -> None:
        self._restarts += 1
        self._clear()
        self._next, self._last_time = 0, float("-inf")
        self._held.clear()

    def _clear(self) -> None:
        self._clears += 1
        self._sink.clear()

    def _hold(self, batch: EventBatch) -> None:
        if len(self._held) >= MAX_HELD:
            self._held.pop(min(self._held))
        self._held[batch.sequence] = batch

    def _apply_all(self, batches: Iterable[EventBatch]) -> None:
        for batch in batches:
            if batch.sequence == self._next:
                self._apply(batch)

    def _apply_held(self) -> None:
        while self._next is not None and (batch := self._held.pop(self._next, None)) is not None:
            self._apply(batch)
        for sequence in [held for held in self._held if held < (self._next or 0)]:
            del self._held[sequence]

    def _apply(self, batch: EventBatch) -> None:
        for event in batch.events:
            self._sink.apply(event)
        self._next = batch.sequence + 1
        self._last_time = batch.time
        self._batches += 1
        self._events += len(batch.events)

    def statistics(self) -> FollowerStatistics:
        """Counts since the start, and batches held back now."""
        return FollowerStatistics(
            self._batches, self._events, self._duplicates, self._gaps, self._restarts, self._clears, len(self._held)
        )

    def check_integrity(self) -> None:
        """Raise AssertionError when a batch is held that could have been applied, or too many are."""
        if len(self._held) > MAX_HELD or (
            self._next is not None and min(self._held, default=self._next + 1) <= self._next
        ):
            raise AssertionError(self._next, sorted(self._held))
