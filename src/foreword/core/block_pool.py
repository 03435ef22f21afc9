"""A fixed number of KV blocks: which are free, which are shared, and which hold a prefix somebody may ask for again.

A block is in one of three states:

* in use: ``ref_cnt`` requests have it in their block tables;
* free and hashed: nobody uses it, its KV can still be found by its hash, and it is reused when its turn comes;
* free and unhashed: reused first.

Order of reuse is the free queue's, front first: unhashed blocks, last freed first; then hashed ones, least recently used
first, each chain from its tail; then pinned ones, which only a full pool touches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from foreword.errors import IntegrityError


class KVCacheBlock:
    """One block of KV memory: an index into the engine's KV arrays, and what is known of its contents.

    The pool alone changes ``ref_cnt``, ``block_hash`` and the links; :class:`PrefixCache` the rest.

    Attributes:
        block_id: row in the engine's KV arrays.
        ref_cnt: block tables it is in.
        block_hash: of the prefix that ends with it; None when its contents cannot be found.
        parent_hash: of the block before it; None at a prompt's start.
        token_ids: its tokens while it is hashed.
        cache_salt: of the request that computed it.
        stored_at: time its hash was registered.
        used_at: time of the last hit, store or free.
        pinned_until: before this time it neither expires nor is reused while others are free.
        num_hits: admissions that found it.
    """

    __slots__ = (
        "block_hash", "block_id", "cache_salt", "next_free", "num_hits", "parent_hash", "pinned_until", "prev_free",
        "ref_cnt", "stored_at", "token_ids", "used_at",
    )  # fmt: skip

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.prev_free: KVCacheBlock | None = None
        self.next_free: KVCacheBlock | None = None
        self.forget()

    def forget(self) -> None:
        """Make the contents unknown."""
        self.block_hash: bytes | None = None
        self.parent_hash: bytes | None = None
        self.token_ids: tuple[int, ...] = ()
        self.cache_salt: str | None = None
        self.stored_at = self.used_at = 0.0
        self.pinned_until = 0.0
        self.num_hits = 0

    def __repr__(self) -> str:
        name = self.block_hash.hex()[:12] if self.block_hash else None
        return f"KVCacheBlock({self.block_id}, ref_cnt={self.ref_cnt}, block_hash={name})"


class FreeBlockQueue:
    """A doubly linked list through the blocks themselves: any block leaves in constant time."""

    def __init__(self, blocks: Iterable[KVCacheBlock] = ()) -> None:
        self._ends = KVCacheBlock(-1)  # after the last and before the first
        self._ends.prev_free = self._ends.next_free = self._ends
        self._length = 0
        for block in blocks:
            self.append(block)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[KVCacheBlock]:
        block = self._ends.next_free
        while block is not None and block is not self._ends:
            yield block
            block = block.next_free

    def append(self, block: KVCacheBlock) -> None:
        """Put at the back: reused last."""
        self._link(self._ends.prev_free, block, self._ends)

    def prepend(self, block: KVCacheBlock) -> None:
        """Put at the front: reused first."""
        self._link(self._ends, block, self._ends.next_free)

    def popleft(self) -> KVCacheBlock:
        """Take from the front; raises IndexError when empty."""
        block = self._ends.next_free
        if block is None or block is self._ends:
            raise IndexError("The free block queue is empty.")
        self.remove(block)
        return block

    def remove(self, block: KVCacheBlock) -> None:
        """Take from wherever it is."""
        before, after = block.prev_free, block.next_free
        if before is None or after is None:
            raise IntegrityError(f"{block} is not in the free queue.")
        before.next_free, after.prev_free = after, before
        block.prev_free = block.next_free = None
        self._length -= 1

    def _link(self, before: KVCacheBlock | None, block: KVCacheBlock, after: KVCacheBlock | None) -> None:
        if before is None or after is None or block.prev_free is not None:
            raise IntegrityError(f"{block} is in a free queue already.")
        block.prev_free, block.next_free = before, after
        before.next_free = after.prev_free = block
        self._length += 1


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
        self._on_evict = on_evict
        self._num_stored = self._num_evicted = 0

    @property
    def num_free(self) -> int:
        """Blocks that nobody uses."""
        return len(self._free) + len(self._free_pinned)

    def get_cached_block(self, block_hash: bytes) -> KVCacheBlock | None:
        """The block with this hash, in use or free; takes no reference."""
        return self._cached.get(block_hash)

    def cached_blocks(self) -> list[KVCacheBlock]:
        """Every block that can be found."""
        return list(self._cached.values())

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

    def register(self, block: KVCacheBlock, block_hash: bytes) -> KVCacheBlock:
        """Make a block in use findable, unless another copy is; returns the copy that can be found."""
        cached = self._cached.setdefault(block_hash, block)
        if cached is block and block.block_hash is None:
            block.block_hash = block_hash
            self._num_stored += 1
        return cached

    def evict(self, block: KVCacheBlock) -> None:
        """Make a block unfindable. Its KV stays with whoever uses it; a free block moves to the front of the queue."""
        if block.block_hash is None:
            return
        if block.ref_cnt == 0 and block.prev_free is not None:
            self._queue_of(block).remove(block)
            self._free.prepend(block)
        del self._cached[block.block_hash]
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
        return BlockPoolStatistics(
            len(self.blocks), self.num_free, len(self._cached), self._num_stored, self._num_evicted
        )

    def check_integrity(self) -> None:
        """Raise IntegrityError unless queues, references and hashes agree."""
        free = [*self._free, *self._free_pinned]
        unused = {block.block_id for block in self.blocks if block.ref_cnt == 0}
        if len(free) != self.num_free or {block.block_id for block in free} != unused or len(free) != len(unused):
            raise IntegrityError(f"The free queues hold {free}, and unused are {sorted(unused)}.")
        hashed = {block.block_hash: block for block in self.blocks if block.block_hash is not None}
        if hashed != self._cached:
            raise IntegrityError(f"Hashed blocks are {hashed}, and findable are {self._cached}.")
        if self._num_stored - self._num_evicted != len(self._cached):
            raise IntegrityError(
                f"{self._num_stored} stored - {self._num_evicted} evicted != {len(self._cached)} held."
            )
        if any(block.block_hash is None or not block.pinned_until for block in self._free_pinned):
            raise IntegrityError("An unpinned block is in the queue of pinned ones.")

    def _queue_of(self, block: KVCacheBlock) -> FreeBlockQueue:
        return self._free_pinned if block.pinned_until else self._free
