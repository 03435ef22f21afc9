"""The prefix cache as a child would write it: plain lists searched from end to end, whole prefixes instead of hashes.

It keeps the same promises as :class:`foreword.PrefixCache` in the slowest way, and so says what the right answer is.
A prefix is ``(cache_salt, tokens)``; blocks are numbers; the free list is a list.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

Prefix = tuple[str | None, tuple[int, ...]]


@dataclass(eq=False)
class NaiveRequest:
    """A request's tokens and the numbers of its blocks."""

    tokens: list[int]
    salt: str | None = None
    table: list[int] = field(default_factory=list)
    computed: int = 0
    shares: bool = True
    announced: int = 0


@dataclass
class NaiveBlock:
    """What one block holds."""

    prefix: Prefix | None = None
    refs: int = 0
    stored_at: float = 0
    used_at: float = 0
    pinned_until: float = 0
    number: int = 0
    """How many blocks had become findable when this one did."""


@dataclass
class NaivePrefixCache:
    """See the module."""

    num_blocks: int
    size: int
    idle: float
    max_age: float
    merge_copies: bool = True
    num_stored: int = 0
    blocks: list[NaiveBlock] = field(default_factory=list)
    free_order: list[int] = field(default_factory=list)
    pinned_order: list[int] = field(default_factory=list)
    running: list[NaiveRequest] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.blocks = [NaiveBlock() for _ in range(self.num_blocks)]
        self.free_order = list(range(self.num_blocks))

    def prefix(self, request: NaiveRequest, i: int) -> Prefix:
        """What block ``i`` of the request stands for."""
        return request.salt, tuple(request.tokens[: (i + 1) * self.size])

    def find(self, prefix: Prefix) -> int | None:
        """The block that holds a prefix; of copies the oldest."""
        copies = [i for i, block in enumerate(self.blocks) if block.prefix == prefix]
        return min(copies, key=lambda i: self.blocks[i].number, default=None)

    def held(self) -> Counter[Prefix]:
        """Every prefix that can be found, with the number of its copies."""
        return Counter(block.prefix for block in self.blocks if block.prefix is not None)

    def lookup(self, request: NaiveRequest, now: float) -> list[int]:
        """The blocks a request need not compute."""
        self.expire(now)
        found = []
        for i in range((len(request.tokens) - 1) // self.size):
            block = self.find(self.prefix(request, i))
            if block is None:
                break
            found.append(block)
        return found

    def pending(self, request: NaiveRequest, hits: int) -> bool:
        """Whether a running request was admitted to compute the block after the hits, and has not yet."""
        if hits >= (len(request.tokens) - 1) // self.size:
            return False
        wanted = self.prefix(request, hits)
        return any(
            other.shares and other.computed < len(wanted[1]) <= other.announced and self.prefix(other, hits) == wanted
            for other in self.running
        )

    def allocate(self, request: NaiveRequest, num_new: int, hits: list[int], now: float) -> bool:
        """Take the hits and as many blocks as are needed, or nothing."""
        held = len(request.table) or len(hits)
        computed = request.computed if request in self.running else len(hits) * self.size
        missing = max(0, -(-(computed + num_new) // self.size) - held)
        if missing + sum(self.blocks[i].refs == 0 for i in hits) > len(self.free_order) + len(self.pinned_order):
            return False
        if request not in self.running:
            request.shares = True
            request.announced = len(request.tokens) // self.size * self.size
            self.running.append(request)
            for i in hits:
                self.take(i)
                self.blocks[i].used_at = now
            request.table = list(hits)
            request.computed = computed
        for _ in range(missing):
            i = (self.free_order or self.pinned_order).pop(0)
            self.blocks[i] = NaiveBlock(refs=1)
            request.table.append(i)
        return True

    def take(self, i: int) -> None:
        """One more reference."""
        if self.blocks[i].refs == 0:
            (self.pinned_order if i in self.pinned_order else self.free_order).remove(i)
        self.blocks[i].refs += 1

    def drop(self, numbers: list[int]) -> None:
        """One reference less to each: hashed ones to the back, others to the front in the order given."""
        front = []
        for i in numbers:
            block = self.blocks[i]
            block.refs -= 1
            if block.refs == 0 and block.prefix is None:
                front.append(i)
            elif block.refs == 0:
                (self.pinned_order if block.pinned_until else self.free_order).append(i)
        self.free_order = front + self.free_order

    def commit(self, request: NaiveRequest, computed: int, now: float) -> None:
        """Full blocks become findable, or are replaced by those that are."""
        first, request.computed = request.computed // self.size, computed
        for i in range(first, computed // self.size if request.shares else 0):
            prefix = self.prefix(request, i)
            found = self.find(prefix)
            if found is None or not self.merge_copies:
                self.num_stored += 1
                block = self.blocks[request.table[i]]
                block.prefix, block.stored_at, block.used_at, block.number = prefix, now, now, self.num_stored
            else:
                self.take(found)
                self.blocks[found].used_at = now
                self.drop([request.table[i]])
                request.table[i] = found

    def free(self, request: NaiveRequest, now: float) -> None:
        """Give everything back, tail first."""
        self.running.remove(request)
        for i in request.table:
            self.blocks[i].used_at = now
        self.drop(request.table[::-1])
        request.table, request.computed = [], 0

    def forget(self, i: int) -> None:
        """Make one block unfindable; a free one is reused next."""
        if self.blocks[i].refs == 0:
            (self.pinned_order if i in self.pinned_order else self.free_order).remove(i)
            self.free_order.insert(0, i)
        self.blocks[i] = NaiveBlock(refs=self.blocks[i].refs)

    def is_over(self, block: NaiveBlock, now: float) -> bool:
        """Whether a block's life has ended."""
        ends = min((now if block.refs else block.used_at) + self.idle, block.stored_at + self.max_age)
        return max(ends, block.pinned_until) <= now

    def unpin(self, now: float) -> None:
        """End the pins whose time has come; free blocks join the others in the order in which they were freed."""
        over = [i for i, b in enumerate(self.blocks) if b.prefix and 0 < b.pinned_until <= now]
        self.free_order += [i for i in self.pinned_order if i in over]
        self.pinned_order = [i for i in self.pinned_order if i not in over]
        for i in over:
            self.blocks[i].pinned_until = 0

    def expire(self, now: float) -> int:
        """Forget all whose life is over; how many blocks."""
        self.unpin(now)
        over = [i for i, block in enumerate(self.blocks) if block.prefix and self.is_over(block, now)]
        for i in over:
            self.forget(i)
        return len(over)

    def pin(self, request: NaiveRequest, num_tokens: int, until: float) -> None:
        """Keep a running request's findable blocks."""
        for i in request.table[: min(num_tokens, request.computed) // self.size]:
            if self.blocks[i].prefix is not None:
                self.blocks[i].pinned_until = max(until, self.blocks[i].pinned_until)

    def reset(self, salt: str | None, *, everything: bool) -> int:
        """Forget everything, or one salt's blocks."""
        for request in self.running:
            if everything or request.salt == salt:
                request.shares = False
        gone = [i for i, b in enumerate(self.blocks) if b.prefix is not None and (everything or b.prefix[0] == salt)]
        for i in gone:
            self.forget(i)
        return len(gone)
