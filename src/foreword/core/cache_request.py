"""What the engine and the prefix cache hand each other."""

from __future__ import annotations

from dataclasses import dataclass, field

from foreword.core.extra_keys import NO_KEYS, CacheKeys
from foreword.core.kv_block import KVCacheBlock


@dataclass(slots=True, eq=False)
class CacheRequest:
    """One request as the cache sees it.

    The engine makes it and appends to ``token_ids`` (never removes). The cache alone changes the rest. ``block_table``
    may change at every call, also in place: read it anew at each step.

    Attributes:
        token_ids: prompt and generated tokens.
        keys: what else its blocks depend on.
        block_hashes: of its full blocks, as far as hashed.
        block_table: where its KV is; block ``i`` holds tokens ``i * block_size`` and on.
        num_computed_tokens: tokens whose KV exists.
        num_cached_tokens: those of them that the last admission found in the cache.
    """

    request_id: str
    token_ids: list[int]
    keys: CacheKeys = NO_KEYS
    block_hashes: list[bytes] = field(default_factory=list)
    block_table: list[KVCacheBlock] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    shares_blocks: bool = True
    """Whether its blocks may become findable; ends for good when a reset comes over it."""


@dataclass(frozen=True, slots=True)
class ComputedBlocks:
    """What a lookup found. Valid until the next call that changes the cache.

    Attributes:
        blocks: the longest run of cached blocks from block 0.
        num_tokens: in them.
        pending: a running request that is about to compute the very next block; once it has committed, a new lookup
            finds more. None when nobody is. If that request ends early, it is pending no longer.
    """

    blocks: list[KVCacheBlock]
    num_tokens: int
    pending: CacheRequest | None = None


@dataclass(frozen=True, slots=True)
class Emptied:
    """What a reset made unfindable in memory, and blocks it deleted on disk."""

    num_blocks: int
    num_tokens: int
    num_disk_blocks: int = 0


@dataclass(frozen=True, slots=True)
class PrefixCacheStatistics:
    """Since the start unless said otherwise.

    Attributes:
        requests: admissions; a preempted request counts again.
        queries: tokens looked up by them: ``hits + misses``.
        hits: tokens found.
        misses: tokens to compute.
        restored: those of the hits that a lower tier had; what it turns out to have counts as missed until it is back.
        stored: blocks that became findable.
        evicted: blocks that ceased to be, for any reason; ``stored - evicted == held``.
        expired: those of them whose time was over.
        reset: those of them emptied by a reset.
        merged: blocks that were computed twice and are kept once.
        held: blocks findable now.
        num_blocks: blocks in all.
        num_free: blocks nobody uses now.
        running: requests that hold blocks now.
    """

    requests: int
    queries: int
    hits: int
    misses: int
    restored: int
    stored: int
    evicted: int
    expired: int
    reset: int
    merged: int
    held: int
    num_blocks: int
    num_free: int
    running: int
