"""Caches that hold block ids instead of keys and values: what a worker would have cached."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from foreword.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BlockCacheStatistics:
    """Blocks held now, and blocks stored and evicted since the start: stored - evicted = held."""

    held: int
    stored: int
    evicted: int


class BlockCache:
    """A worker's prefix cache of ``capacity`` blocks: whole prompts are touched, the chain's root last.

    So a chain loses its tail before its head, as in vLLM's pool and in trees that evict leaves. ``admit`` mutates;
    ``match`` does not.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ConfigError(f"A cache of {capacity} blocks holds nothing.", hint="Give at least one block.")
        self.capacity = capacity
        self._blocks: OrderedDict[Hashable, None] = OrderedDict()  # least recently used first
        self._stored = 0

    def match(self, blocks: Sequence[Hashable]) -> int:
        """How many leading blocks are held."""
        held = self._blocks
        for count, block in enumerate(blocks):
            if block not in held:
                return count
        return len(blocks)

    def admit(self, blocks: Sequence[Hashable]) -> None:
        """Hold a prompt's blocks, evicting the least recently used; of a prompt over the capacity, its opening."""
        held = self._blocks
        before = len(held)
        for block in reversed(blocks[: self.capacity]):
            held[block] = None
            held.move_to_end(block)
        self._stored += len(held) - before
        while len(held) > self.capacity:
            held.popitem(last=False)

    def statistics(self) -> BlockCacheStatistics:
        """Blocks held, stored and evicted."""
        return BlockCacheStatistics(len(self._blocks), self._stored, self._stored - len(self._blocks))

    def check_integrity(self) -> None:
        """Raise AssertionError unless the bound holds and the counts add up."""
        stats = self.statistics()
        if not (0 <= stats.held <= self.capacity and stats.evicted >= 0):
            raise AssertionError(stats)
