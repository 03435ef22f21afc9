"""A block of KV memory, and the queue of blocks that nobody uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
        turn: grows with every block that joins the back of its queue.
    """

    __slots__ = (
        "block_hash", "block_id", "cache_salt", "next_free", "num_hits", "parent_hash", "pinned_until", "prev_free",
        "ref_cnt", "stored_at", "token_ids", "turn", "used_at",
    )  # fmt: skip

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.turn = 0
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
        self._length = self._turn = 0
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
        self._turn += 1
        block.turn = self._turn
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
