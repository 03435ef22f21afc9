"""The prefix cache: which leading tokens of a request have their KV already, and where.

A request's life, step by step; the engine makes these calls in this order and never concurrently::

    request = CacheRequest("id", token_ids, CacheKeys(cache_salt=...))
    computed = cache.get_computed_blocks(request, now)          # looks, takes nothing
    if computed.pending: ...                                    # somebody is computing the next block: better wait
    cache.allocate_slots(request, num_new_tokens, computed, now)    # True: hit blocks and new ones are in its table
    ...write KV of the new tokens into request.block_table...
    cache.commit(request, num_computed_tokens, now)             # only now can others find them
    ...allocate_slots and commit again for each chunk and each decoded token...
    cache.free(request, now)                                    # finished, aborted or preempted; its KV stays findable

A preempted request comes back through ``get_computed_blocks`` and is likely to find its own blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import count, groupby
from operator import attrgetter

from foreword.core.block_pool import BlockPool
from foreword.core.cache_request import CacheRequest, ComputedBlocks, Emptied, PrefixCacheStatistics
from foreword.core.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent
from foreword.core.extra_keys import parse_salt, untag
from foreword.core.hashing import BlockHasher
from foreword.core.kv_block import KVCacheBlock
from foreword.core.retention import DeadlineQueue, Retention, pin_ends_at
from foreword.errors import IntegrityError, PromptExceedsCache


class PrefixCache:
    """Finds, shares and forgets blocks of KV for requests. Owns the pool; knows nothing of what is in the blocks.

    Args:
        num_blocks: blocks of KV memory.
        hasher: gives block hashes and the block size.
        retention: how long blocks live unused.
        enable_events: keep events for :meth:`take_events`, which somebody then has to call.
        medium: where the blocks are, for events.
        merge_copies: keep one block of those that were computed twice. False keeps them all, with an event each, as
            vLLM does, whose block tables only ever grow: hits and evictions are then those of a vLLM that is given the
            same requests and has one block more, which it never uses.
    """

    def __init__(
        self,
        num_blocks: int,
        hasher: BlockHasher,
        *,
        retention: Retention | None = None,
        enable_events: bool = False,
        medium: str | None = "GPU",
        merge_copies: bool = True,
    ) -> None:
        self.hasher = hasher
        self.block_size = hasher.block_size
        self.pool = BlockPool(num_blocks, self._note_removed if enable_events else None)
        self._lives = DeadlineQueue((retention or Retention()).expires_at)
        self._pins = DeadlineQueue(pin_ends_at)
        self._enable_events = enable_events
        self._medium = medium
        self._merge_copies = merge_copies
        self._running: set[CacheRequest] = set()
        self._pending: dict[bytes, CacheRequest] = {}
        self._events: list[KVCacheEvent] = []
        self._num_requests = self._num_hits = self._num_misses = 0
        self._num_expired = self._num_reset = self._num_merged = self._num_restored = 0

    # Looking

    def check_fits(self, num_tokens: int) -> None:
        """Raise PromptExceedsCache when so many tokens can never have KV blocks all at once."""
        capacity = len(self.pool.blocks) * self.block_size
        if num_tokens > capacity:
            raise PromptExceedsCache(
                f"The prompt has {num_tokens} tokens, and the whole KV cache holds {capacity}.",
                hint="Shorten the prompt, or give the engine more KV blocks.",
                prompt_tokens=num_tokens,
                capacity=capacity,
            )

    def find_longest_cache_hit(self, block_hashes: list[bytes], max_blocks: int) -> list[KVCacheBlock]:
        """Cached blocks of the first hashes, up to the first that is not cached or ``max_blocks``; changes nothing."""
        blocks: list[KVCacheBlock] = []
        for block_hash in block_hashes[:max_blocks]:
            block = self.pool.get_cached_block(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def get_computed_blocks(self, request: CacheRequest, now: float = 0.0) -> ComputedBlocks:
        """Find the KV a new or preempted request need not compute; takes no references.

        At most ``num_tokens - 1`` tokens are found: the last one is always computed, for its logits. Hashes the
        request's new full blocks; hash a long prompt beforehand with ``cache.hasher.slices`` into
        ``request.block_hashes`` to do that in small pieces.

        Raises:
            PromptExceedsCache: the request can never run.
        """
        self.check_fits(len(request.token_ids))
        self.expire(now)
        self.hasher.extend(request.block_hashes, request.token_ids, request.keys)
        max_blocks = (len(request.token_ids) - 1) // self.block_size
        blocks = self.find_longest_cache_hit(request.block_hashes, max_blocks)
        pending = self._pending.get(request.block_hashes[len(blocks)]) if len(blocks) < max_blocks else None
        return ComputedBlocks(blocks, len(blocks) * self.block_size, pending)

    # A request's blocks

    def can_allocate(self, request: CacheRequest, num_new_tokens: int, computed: ComputedBlocks | None = None) -> bool:
        """Whether :meth:`allocate_slots` with the same arguments would succeed."""
        hits = computed.blocks if computed else []
        reused = sum(block.ref_cnt == 0 for block in hits)
        return self.pool.can_allocate(self._num_new_blocks(request, num_new_tokens, len(hits)) + reused)

    def allocate_slots(
        self, request: CacheRequest, num_new_tokens: int, computed: ComputedBlocks | None = None, now: float = 0.0
    ) -> bool:
        """Give the request blocks for ``num_new_tokens`` more tokens than are computed; False changes nothing.

        The first call admits the request: it takes the blocks found by :meth:`get_computed_blocks`, refreshes their
        life, and announces the request's full blocks as pending. Later calls give no ``computed``.
        """
        if not self.can_allocate(request, num_new_tokens, computed):
            return False
        if request not in self._running:
            self._admit(request, computed or ComputedBlocks([], 0), now)
        request.block_table += self.pool.allocate(self._num_new_blocks(request, num_new_tokens))
        return True

    def commit(self, request: CacheRequest, num_computed_tokens: int, now: float = 0.0) -> None:
        """Say that the KV of the first ``num_computed_tokens`` tokens is written; full blocks become findable.

        A block that another request has made findable meanwhile is replaced by that one in the block table, and the
        copy is freed, unless copies are kept.
        """
        first, last = request.num_computed_tokens // self.block_size, num_computed_tokens // self.block_size
        request.num_computed_tokens = num_computed_tokens
        self.hasher.extend(request.block_hashes, request.token_ids, request.keys)
        if request.shares_blocks:
            self._note_stored(request, [i for i in range(first, last) if self._register(request, i, now)])

    def restore(self, request: CacheRequest, num_blocks: int, now: float = 0.0) -> None:
        """Say that the KV of the request's next blocks was brought back from a lower tier: committed, and hits."""
        num_tokens = num_blocks * self.block_size
        self.commit(request, request.num_computed_tokens + num_tokens, now)
        request.num_cached_tokens += num_tokens
        self._num_hits += num_tokens
        self._num_misses -= num_tokens
        self._num_restored += num_tokens

    def free(self, request: CacheRequest, now: float = 0.0) -> None:
        """Give back all the request's blocks, tail first; it may be admitted again."""
        self._withdraw(request)
        self._running.discard(request)
        for block in request.block_table:
            block.used_at = now
        self.pool.free(request.block_table[::-1])
        request.block_table.clear()
        request.num_computed_tokens = 0

    # Forgetting

    def pin(self, request: CacheRequest, num_tokens: int, until: float) -> int:
        """Keep the request's committed blocks within its first ``num_tokens`` until a time; returns how many.

        They do not expire before, and are reused only when no other block is free. A pin never shortens another.
        """
        blocks = request.block_table[: min(num_tokens, request.num_computed_tokens) // self.block_size]
        hashed = [block for block in blocks if block.block_hash is not None]
        for block in hashed:
            self.pool.pin(block, max(until, block.pinned_until))
            self._pins.add(block, until)
        return len(hashed)

    def expire(self, now: float) -> int:
        """Forget the blocks whose life is over; returns how many. Every lookup does this first."""
        freed_order = attrgetter("turn")  # a chain's tail before its head
        for block in sorted(self._pins.pop_due(now), key=freed_order):
            self.pool.pin(block, 0)
        due = self._lives.pop_due(now)
        for block in due:
            self.pool.evict(block)
        self._num_expired += len(due)
        return len(due)

    def reset(self, *, organisation: str | None = None, cache_salt: str | None = None) -> Emptied:
        """Forget everything, or what belongs to an organisation, a salt, or an organisation's salt.

        Requests that run go on with the blocks they have; nothing of theirs becomes findable any more.
        """

        def belongs(salt: str | None) -> bool:
            its_organisation, its_salt = parse_salt(salt)
            return organisation in (None, its_organisation) and cache_salt in (None, its_salt)

        for request in self._running:
            if belongs(request.keys.cache_salt):
                self._withdraw(request)
                request.shares_blocks = False
        blocks = [block for block in self.pool.cached_blocks() if belongs(block.cache_salt)]
        num_events = len(self._events)
        for block in blocks:
            self.pool.evict(block)
        if organisation is None and cache_salt is None and self._enable_events:
            self._events[num_events:] = [AllBlocksCleared()]
        self._num_reset += len(blocks)
        return Emptied(len(blocks), len(blocks) * self.block_size)

    # Watching

    def take_events(self) -> list[KVCacheEvent]:
        """The events since the last call, in order; block hashes are whole digests."""
        events, self._events = self._events, []
        return events

    def statistics(self) -> PrefixCacheStatistics:
        """Counts since the start and the state now."""
        pool = self.pool.statistics()
        return PrefixCacheStatistics(
            requests=self._num_requests,
            queries=self._num_hits + self._num_misses,
            hits=self._num_hits,
            misses=self._num_misses,
            restored=self._num_restored,
            stored=pool.stored,
            evicted=pool.evicted,
            expired=self._num_expired,
            reset=self._num_reset,
            merged=self._num_merged,
            held=pool.held,
            num_blocks=pool.num_blocks,
            num_free=pool.num_free,
            running=len(self._running),
        )

    def check_integrity(self) -> None:
        """Raise IntegrityError unless the pool is sound, and references, block tables and hashes agree."""
        self.pool.check_integrity()
        references = Counter(block.block_id for request in self._running for block in request.block_table)
        for block in self.pool.blocks:
            if block.ref_cnt != references[block.block_id]:
                raise IntegrityError(f"{block} is in {references[block.block_id]} block tables.")
        for request in self._running:
            if request.num_computed_tokens > len(request.block_table) * self.block_size:
                raise IntegrityError(f"{request.request_id} has more tokens computed than blocks for them.")
            for block, block_hash in zip(request.block_table, request.block_hashes, strict=False):
                if block.block_hash not in (None, block_hash):
                    raise IntegrityError(f"{block} is in the block table of {request.request_id} with another hash.")
        if not self._running.issuperset(self._pending.values()):
            raise IntegrityError("A pending block belongs to a request that does not run.")

    # Steps

    def _num_new_blocks(self, request: CacheRequest, num_new_tokens: int, num_hits: int = 0) -> int:
        """How many blocks are missing for so many more tokens."""
        num_held = len(request.block_table) or num_hits
        num_tokens = max(request.num_computed_tokens, num_hits * self.block_size) + num_new_tokens
        return max(0, -(-num_tokens // self.block_size) - num_held)

    def _admit(self, request: CacheRequest, computed: ComputedBlocks, now: float) -> None:
        for block, block_hash in zip(computed.blocks, request.block_hashes, strict=False):
            if block.block_hash != block_hash:
                raise IntegrityError(f"The lookup for {request.request_id} is out of date.", hint="Look up again.")
        self.pool.touch(computed.blocks)
        for block in computed.blocks:
            block.used_at = now
            block.num_hits += 1
        request.block_table += computed.blocks
        request.num_computed_tokens = request.num_cached_tokens = computed.num_tokens
        request.shares_blocks = True
        self._running.add(request)
        for block_hash in request.block_hashes[len(computed.blocks) :]:
            self._pending.setdefault(block_hash, request)
        self._num_requests += 1
        self._num_hits += computed.num_tokens
        self._num_misses += len(request.token_ids) - computed.num_tokens

    def _withdraw(self, request: CacheRequest) -> None:
        """Nobody need wait for this request's blocks any more."""
        for block_hash in request.block_hashes[request.num_computed_tokens // self.block_size :]:
            if self._pending.get(block_hash) is request:
                del self._pending[block_hash]

    def _register(self, request: CacheRequest, i: int, now: float) -> bool:
        """Make the request's block ``i`` findable; False when it is already, and then it is replaced by the one found."""
        block, block_hash = request.block_table[i], request.block_hashes[i]
        if self._pending.get(block_hash) is request:
            del self._pending[block_hash]
        found = self.pool.register(block, block_hash, keep_copy=not self._merge_copies)
        found.used_at = now
        if found is not block:
            self.pool.touch([found])
            self.pool.free([block])
            request.block_table[i] = found
            self._num_merged += 1
            return False
        block.parent_hash = request.block_hashes[i - 1] if i else None
        block.token_ids = tuple(request.token_ids[i * self.block_size : (i + 1) * self.block_size])
        block.cache_salt = request.keys.cache_salt
        block.stored_at = now
        self._lives.add(block, now)
        return True

    def _note_stored(self, request: CacheRequest, indexes: Iterable[int]) -> None:
        """One event for each run of neighbouring blocks."""
        if not self._enable_events:
            return
        size, keys, position = self.block_size, request.keys, count()
        for _, group in groupby(indexes, lambda i: i - next(position)):
            run = list(group)
            start, end = run[0], run[-1] + 1
            self._events.append(
                BlockStored(
                    block_hashes=list(request.block_hashes[start:end]),
                    parent_block_hash=request.block_hashes[start - 1] if start else None,
                    token_ids=request.token_ids[start * size : end * size],
                    block_size=size,
                    lora_name=keys.lora[0] if keys.lora else None,
                    extra_keys=[untag(keys.of_block(i * size, (i + 1) * size)) for i in run],
                    medium=self._medium,
                )
            )

    def _note_removed(self, block_hash: bytes) -> None:
        self._events.append(BlockRemoved([block_hash], self._medium))
