"""A fixed number of KV blocks: which are free, which are shared, and which hold a prefix somebody may ask for again.

A block is in one of three states:

* in use: ``ref_cnt`` requests have it in their block tables;
* free and hashed: nobody uses it, its KV can still be found by its hash, and it is reused when its turn comes;
* free and unhashed: reused first.

Order of reuse is the free queue's, front first: unhashed blocks, last freed first; then hashed ones, least recently used
first, each chain from its tail; then pinned ones, which only a full pool touches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from foreword.core.kv_block import FreeBlockQueue, KVCacheBlock
from foreword.errors import IntegrityError


@dataclass(frozen=True, slots=True)
class BlockPoolStatistics:
    """Blocks in all, free (hashed or not), findable by hash; and hashes registered and dropped since the start."""

    num_blocks: int
    num_free: int
    held: int
    stored: int
    evicted: int


class BlockPool:
    """Hands out blocks and finds them by hash. It owns every block; callers hold references they must free.

    ``allocate`` and ``touch`` take references, ``free`` gives them back; ``register`` makes a block findable, ``evict``
    ends that.

    Args:
        num_blocks: blocks of KV memory.
        on_evict: called with each hash that can no longer be found, as it happens.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[bytes], None] | None = None) -> None:
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
        self._free = FreeBlockQueue(self.blocks)
        self._free_pinned = FreeBlockQueue()
        self._cached: dict[bytes, KVCacheBlock] = {}
        self._copies: dict[bytes, list[KVCacheBlock]] = {}  # the same prefix once more, oldest first
        self._on_evict = on_evict
        self._num_stored = self._num_evicted = 0

    @property
    def num_free(self) -> int:
        """Blocks that nobody uses."""
        return len(self._free) + len(self._free_pinned)

    def get_cached_block(self, block_hash: bytes) -> KVCacheBlock | None:
        """The block with this hash, in use or free, of copies the oldest; takes no reference."""
        return self._cached.get(block_hash)

    def cached_blocks(self) -> list[KVCacheBlock]:
        """Every block that can be found, and the copies that can when it is gone."""
        return [*self._cached.values(), *(copy for copies in self._copies.values() for copy in copies)]

    def can_allocate(self, num_blocks: int) -> bool:
        """Whether so many blocks are free."""
        return num_blocks <= self.num_free

    def allocate(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take free blocks in order of reuse, one reference each; what they held can no longer be found."""
        if not self.can_allocate(num_blocks):
            raise IntegrityError(f"{num_blocks} blocks were asked for and {self.num_free} are free.")
        blocks = [(self._free or self._free_pinned).popleft() for _ in range(num_blocks)]
        for block in blocks:
            self.evict(block)
            block.ref_cnt = 1
        return blocks

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Take one more reference to each block, free or not."""
        for block in blocks:
            if block.ref_cnt == 0:
                self._queue_of(block).remove(block)
            block.ref_cnt += 1

    def free(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Give back one reference to each block; list a chain from its tail, so that its tail is reused first."""
        unhashed = []
        for block in blocks:
            if block.ref_cnt == 0:
                raise IntegrityError(f"{block} was freed more often than taken.")
            block.ref_cnt -= 1
            if block.ref_cnt == 0 and block.block_hash is None:
                unhashed.append(block)
            elif block.ref_cnt == 0:
                self._queue_of(block).append(block)
        for block in reversed(unhashed):
            self._free.prepend(block)

    def register(self, block: KVCacheBlock, block_hash: bytes, *, keep_copy: bool = False) -> KVCacheBlock:
        """Make a block in use findable, unless another copy is; returns the copy that can be found.

        With ``keep_copy`` a further copy is kept too, to be found when those before it are gone; it returns ``block``.
        """
        cached = self._cached.setdefault(block_hash, block)
        if block.block_hash is None and (cached is block or keep_copy):
            if cached is not block:
                self._copies.setdefault(block_hash, []).append(block)
            block.block_hash = block_hash
            self._num_stored += 1
            return block
        return cached

    def evict(self, block: KVCacheBlock) -> None:
        """Make a block unfindable. Its KV stays with whoever uses it; a free block moves to the front of the queue."""
        if block.block_hash is None:
            return
        if block.ref_cnt == 0 and block.prev_free is not None:
            self._queue_of(block).remove(block)
            self._free.prepend(block)
        self._drop(block, block.block_hash)
        self._num_evicted += 1
        if self._on_evict:
            self._on_evict(block.block_hash)
        block.forget()

    def pin(self, block: KVCacheBlock, until: float) -> None:
        """Reuse and expire this hashed block only after ``until``, or when nothing else is free; 0 ends that."""
        is_free = block.ref_cnt == 0
        if is_free:
            self._queue_of(block).remove(block)
        block.pinned_until = until
        if is_free:
            self._queue_of(block).append(block)

    def statistics(self) -> BlockPoolStatistics:
        """Counts; ``stored - evicted == held``."""
        num_held = len(self._cached) + sum(map(len, self._copies.values()))
        return BlockPoolStatistics(len(self.blocks), self.num_free, num_held, self._num_stored, self._num_evicted)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless queues, references and hashes agree."""
        free = [*self._free, *self._free_pinned]
        unused = {block.block_id for block in self.blocks if block.ref_cnt == 0}
        if len(free) != self.num_free or {block.block_id for block in free} != unused or len(free) != len(unused):
            raise IntegrityError(f"The free queues hold {free}, and unused are {sorted(unused)}.")
        hashed = Counter((block.block_hash, block) for block in self.blocks if block.block_hash is not None)
        named = [*self._cached.items(), *((h, copy) for h, copies in self._copies.items() for copy in copies)]
        if hashed != Counter(named):
            raise IntegrityError(f"Hashed blocks are {list(hashed)}, and findable are {named}.")
        if any(not copies or block_hash not in self._cached for block_hash, copies in self._copies.items()):
            raise IntegrityError("Copies are kept of a block that cannot be found.")
        if self._num_stored - self._num_evicted != len(named):
            raise IntegrityError(f"{self._num_stored} stored - {self._num_evicted} evicted != {len(named)} held.")
        if any(block.block_hash is None or not block.pinned_until for block in self._free_pinned):
            raise IntegrityError("An unpinned block is in the queue of pinned ones.")

    def _queue_of(self, block: KVCacheBlock) -> FreeBlockQueue:
        return self._free_pinned if block.pinned_until else self._free

    def _drop(self, block: KVCacheBlock, block_hash: bytes) -> None:
        """Take a block from those with its hash; the next copy, if there is one, takes its place."""
        copies = self._copies.get(block_hash, [])
        if self._cached[block_hash] is not block:
            copies.remove(block)
        elif copies:
            self._cached[block_hash] = copies.pop(0)
        else:
            del self._cached[block_hash]
        if not copies:
            self._copies.pop(block_hash, None)
