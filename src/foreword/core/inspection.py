"""What a prefix cache holds, for people: its numbers and its hottest prefixes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from foreword.core.cache_request import PrefixCacheStatistics
from foreword.core.extra_keys import parse_salt
from foreword.core.kv_block import KVCacheBlock
from foreword.core.prefix_cache import PrefixCache
from foreword.generation import DiskTierStatistics

START_TOKENS = 128
"""Tokens of a prefix that are shown."""


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """A chain of cached blocks from a prompt's start.

    Attributes:
        token_ids: its first tokens, at most START_TOKENS.
        num_tokens: in the whole chain.
        num_hits: requests that found all of it.
        organisation: whose it is; None when it is nobody's in particular.
        salted: whether it has a cache salt besides. The salt itself may be a secret.
    """

    token_ids: tuple[int, ...]
    num_tokens: int
    num_hits: int
    organisation: str | None
    salted: bool


@dataclass(frozen=True, slots=True)
class PrefixCacheReport:
    """A prefix cache at one moment; ``hottest`` begins with the prefix that saved most, ``disk`` is a tier below it."""

    block_size: int
    statistics: PrefixCacheStatistics
    hottest: tuple[CachedPrefix, ...]
    disk: DiskTierStatistics | None = None


def inspect_prefix_cache(cache: PrefixCache, limit: int) -> PrefixCacheReport:
    """The cache's numbers and its hottest prefixes, at most ``limit``; changes nothing, takes time with the blocks held."""
    return PrefixCacheReport(cache.block_size, cache.statistics(), hottest_prefixes(cache, limit))


def hottest_prefixes(cache: PrefixCache, limit: int) -> tuple[CachedPrefix, ...]:
    """The prefixes whose hits spared most tokens. None is the beginning of another: the one that spared more is shown."""
    chains = _Chains(cache.pool.cached_blocks())
    found: list[CachedPrefix] = []
    shown: set[bytes | None] = set()
    covered: set[bytes | None] = set()
    for block in sorted(chains.reachable(), key=chains.tokens_spared, reverse=True):
        if len(found) == limit:
            break
        chain = list(chains.upwards(block))
        if block.block_hash in covered or any(above.block_hash in shown for above in chain):
            continue
        shown.add(block.block_hash)
        covered.update(above.block_hash for above in chain)
        found.append(_prefix(chain, cache.block_size))
    return tuple(found)


class _Chains:
    """Cached blocks and how far each is from its prompt's start; a chain without its start cannot be found any more."""

    def __init__(self, blocks: list[KVCacheBlock]) -> None:
        self._by_hash = {block.block_hash: block for block in blocks}
        self._depths: dict[bytes | None, int] = {None: 0}
        for block in blocks:
            self._measure(block)

    def _measure(self, block: KVCacheBlock) -> None:
        path = []
        at: KVCacheBlock | None = block
        while at is not None and at.block_hash not in self._depths:
            path.append(at)
            if at.parent_hash is None:
                break
            at = self._by_hash.get(at.parent_hash)
        if at is None:
            return
        for step in reversed(path):
            self._depths[step.block_hash] = self._depths[step.parent_hash] + 1

    def reachable(self) -> Iterator[KVCacheBlock]:
        """Blocks whose whole chain is cached."""
        return (block for block in self._by_hash.values() if block.block_hash in self._depths)

    def upwards(self, block: KVCacheBlock) -> Iterator[KVCacheBlock]:
        """The block, the one before it, and so on to the first."""
        at: KVCacheBlock | None = block
        while at is not None:
            yield at
            at = self._by_hash.get(at.parent_hash) if at.parent_hash else None

    def tokens_spared(self, block: KVCacheBlock) -> tuple[int, int]:
        """Hits times length, in blocks; among those never hit the longest."""
        depth = self._depths[block.block_hash]
        return block.num_hits * depth, depth


def _prefix(chain: list[KVCacheBlock], block_size: int) -> CachedPrefix:
    """The chain's description, last block first."""
    first = chain[-ceil(START_TOKENS / block_size) :]
    start = tuple(token_id for block in reversed(first) for token_id in block.token_ids)
    organisation, salt = parse_salt(chain[0].cache_salt)
    return CachedPrefix(
        start[:START_TOKENS], len(chain) * block_size, chain[0].num_hits, organisation, salt is not None
    )
