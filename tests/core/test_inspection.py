"""Looking into a prefix cache: which prefixes are shown, and in what order."""

from __future__ import annotations

from foreword.core.cache_request import CacheRequest
from foreword.core.extra_keys import CacheKeys, frame_salt
from foreword.core.hashing import BlockHasher
from foreword.core.inspection import START_TOKENS, CachedPrefix, hottest_prefixes, inspect_prefix_cache
from foreword.core.prefix_cache import PrefixCache

SYSTEM = list(range(100, 112))


def run(cache: PrefixCache, *token_ids: int, salt: str | None = None, times: int = 1) -> None:
    """Requests from admission to their end."""
    for _ in range(times):
        request = CacheRequest("r", list(token_ids), CacheKeys(salt))
        computed = cache.get_computed_blocks(request)
        assert cache.allocate_slots(request, len(token_ids) - computed.num_tokens, computed)
        cache.commit(request, len(token_ids))
        cache.free(request)


def make(num_blocks: int = 64) -> PrefixCache:
    """An empty cache of blocks of four tokens."""
    return PrefixCache(num_blocks, BlockHasher(4))


def test_what_many_requests_share_is_shown_once() -> None:
    """Of a system prompt and the questions behind it, the part whose hits spared most is shown, and no part of it again."""
    cache = make()
    for question in range(5):
        run(cache, *SYSTEM, *range(question, question + 9))
    assert hottest_prefixes(cache, 10) == (CachedPrefix(tuple(SYSTEM), 12, 4, None, salted=False),)


def test_order_is_by_tokens_spared() -> None:
    """Hits times length decide; prefixes never hit come last, the longest first; the limit cuts the list."""
    cache = make()
    run(cache, *range(5), times=4)  # three hits of one block
    run(cache, *range(10, 22), 0, times=3)  # two hits of three blocks
    run(cache, *range(30, 38), 0)
    run(cache, *range(50, 62), 0)
    shown = [(prefix.token_ids[0], prefix.num_tokens, prefix.num_hits) for prefix in hottest_prefixes(cache, 10)]
    assert shown == [(10, 12, 2), (0, 4, 3), (50, 12, 0), (30, 8, 0)]
    assert len(hottest_prefixes(cache, 2)) == 2
    assert hottest_prefixes(cache, 0) == ()


def test_owner_is_shown_and_the_salt_is_not() -> None:
    """An organisation is named; of a salt only that there is one is told."""
    cache = make()
    run(cache, *SYSTEM, 0, salt=frame_salt("acme", "hush"), times=2)
    run(cache, *SYSTEM, 0, salt="hush")
    owners = [(prefix.organisation, prefix.salted) for prefix in hottest_prefixes(cache, 10)]
    assert owners == [("acme", True), (None, True)]
    assert "hush" not in repr(hottest_prefixes(cache, 10))


def test_only_the_start_is_shown() -> None:
    """A long prefix is cut to its first tokens; its length is not."""
    cache = make()
    run(cache, *range(201), times=2)
    (prefix,) = hottest_prefixes(cache, 1)
    assert prefix.token_ids == tuple(range(START_TOKENS))
    assert prefix.num_tokens == 200


def test_a_chain_without_its_start_is_not_shown() -> None:
    """What no request could find any more is left out."""
    cache = make()
    run(cache, *SYSTEM, 0, times=2)
    first = next(block for block in cache.pool.cached_blocks() if block.parent_hash is None)
    cache.pool.evict(first)
    assert hottest_prefixes(cache, 10) == ()


def test_report() -> None:
    """The report has the cache's own numbers, and making it changes none of them."""
    cache = make()
    run(cache, *SYSTEM, 0, times=2)
    before = cache.statistics()
    report = inspect_prefix_cache(cache, 1)
    assert (report.block_size, report.statistics, len(report.hottest)) == (4, before, 1)
    assert cache.statistics() == before
    assert (before.queries, before.hits, before.misses) == (26, 12, 14)
