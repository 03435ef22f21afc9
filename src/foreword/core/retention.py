"""How long a cached block lives, and which are due. Time is whatever clock the caller passes in, in seconds."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

from foreword.core.kv_block import KVCacheBlock


@dataclass(frozen=True, slots=True)
class Retention:
    """A cached block's life.

    Attributes:
        idle_seconds: since the last hit; blocks in use are not idle. None is for ever.
        max_age_seconds: since it was stored, used or not. None is for ever.
    """

    idle_seconds: float | None = None
    max_age_seconds: float | None = None

    def expires_at(self, block: KVCacheBlock, now: float) -> float:
        """When this hashed block's life ends unless it is hit before; a pin prolongs it."""
        used_at = now if block.ref_cnt else block.used_at
        idle = math.inf if self.idle_seconds is None else used_at + self.idle_seconds
        age = math.inf if self.max_age_seconds is None else block.stored_at + self.max_age_seconds
        return max(min(idle, age), block.pinned_until)


IN_MEMORY = Retention(idle_seconds=600, max_age_seconds=3600)
"""What the API promises of a prompt nothing else is asked for: ten idle minutes, and never more than an hour."""
DAY = 86_400
"""Seconds that ``prompt_cache_retention="24h"`` asks for."""


class DeadlineQueue:
    """Which hashed blocks may be due, soonest first. A block whose deadline moved later is looked at once too often.

    Args:
        deadline: when a block is due, seen at a time; infinity is never.
    """

    def __init__(self, deadline: Callable[[KVCacheBlock, float], float]) -> None:
        self._deadline = deadline
        self._heap: list[tuple[float, int, KVCacheBlock]] = []
        self._queued: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, block: KVCacheBlock, now: float) -> None:
        """Watch a block, unless it is never due or is watched for an earlier time already."""
        deadline = self._deadline(block, now)
        if deadline < self._queued.get(block.block_id, math.inf):
            self._queued[block.block_id] = deadline
            heapq.heappush(self._heap, (deadline, block.block_id, block))

    def pop_due(self, now: float) -> list[KVCacheBlock]:
        """Hashed blocks that are due at ``now``, longest due first; they are watched no longer."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            queued, block_id, block = heapq.heappop(self._heap)
            if self._queued.get(block_id) != queued:
                continue
            del self._queued[block_id]
            if block.block_hash is None:
                continue
            if self._deadline(block, now) > queued:
                self.add(block, now)
            else:
                due.append(block)
        return due


def pin_ends_at(block: KVCacheBlock, now: float) -> float:  # noqa: ARG001  a deadline is seen at a time
    """When the block's pin ends; never when it has none."""
    return block.pinned_until or math.inf
