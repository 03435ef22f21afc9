"""The prefix cache's promises, one by one, each where random runs might miss it."""

import gc
import random
import tracemalloc

import pytest

from foreword import PrefixCache
from foreword.core.cache_request import CacheRequest
from foreword.core.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored
from foreword.core.extra_keys import CacheKeys, frame_salt
from foreword.core.hashing import BlockHasher, hash_request_tokens
from foreword.core.retention import Retention
from foreword.errors import IntegrityError, PromptExceedsCache, RequestError


def make(num_blocks: int = 16, block_size: int = 4, **options: object) -> PrefixCache:
    """A small cache that keeps events."""
    return PrefixCache(num_blocks, BlockHasher(block_size), enable_events=True, **options)  # type: ignore[arg-type]


def start(cache: PrefixCache, tokens: list[int], *, salt: str | None = None, now: float = 0.0) -> CacheRequest:
    """Admit a request with blocks for all its tokens; nothing is computed yet."""
    request = CacheRequest("r", list(tokens), CacheKeys(salt))
    computed = cache.get_computed_blocks(request, now)
    assert cache.allocate_slots(request, len(tokens) - computed.num_tokens, computed, now)
    return request


def run(cache: PrefixCache, tokens: list[int], *, salt: str | None = None, now: float = 0.0) -> int:
    """A request from admission to its end; how many of its tokens were cached."""
    request = start(cache, tokens, salt=salt, now=now)
    cache.commit(request, len(tokens), now)
    cache.free(request, now)
    cache.check_integrity()
    return request.num_cached_tokens


def hit(cache: PrefixCache, tokens: list[int], *, salt: str | None = None, now: float = 0.0) -> int:
    """What a lookup finds, without taking it."""
    return cache.get_computed_blocks(CacheRequest("probe", list(tokens), CacheKeys(salt)), now).num_tokens


@pytest.mark.parametrize("block_size, cached", [(32, 160), (16, 176)])
def test_the_last_token_is_always_computed(block_size: int, cached: int) -> None:
    """A fully cached prompt of 192 tokens reports 160 at block 32 and 176 at block 16, as engines do."""
    cache = make(32, block_size)
    prompt = list(range(192))
    assert run(cache, prompt) == 0
    assert run(cache, prompt) == cached
    assert run(cache, [*prompt, 7]) == 192


def test_a_chain_loses_its_tail_before_its_head() -> None:
    """Of four cached blocks, two new ones take the last two."""
    cache = make(4)
    run(cache, list(range(16)))
    start(cache, [90] * 8)
    assert len(cache.find_longest_cache_hit(hash_request_tokens(range(16), 4), 4)) == 2


def test_a_partial_hit_refreshes_the_whole_matched_chain() -> None:
    """Two old blocks are hit by a short prompt; the next evictions take the third, then the younger chain."""
    cache = make(6)
    old, young = list(range(12)), list(range(50, 62))
    run(cache, old)
    run(cache, young)
    assert run(cache, [*old[:8], 99]) == 8
    start(cache, [70] * 16)
    assert len(cache.find_longest_cache_hit(hash_request_tokens(old, 4), 3)) == 2
    assert len(cache.find_longest_cache_hit(hash_request_tokens(young, 4), 3)) == 0


def test_blocks_are_found_only_after_their_kv_is_written() -> None:
    """Allocated is not computed; half a block committed is not a block."""
    cache, prompt = make(), list(range(9))
    request = start(cache, prompt)
    assert hit(cache, prompt) == 0
    cache.commit(request, 3)
    assert hit(cache, prompt) == 0
    cache.commit(request, 7)
    assert hit(cache, prompt) == 4
    cache.commit(request, 9)
    assert hit(cache, prompt) == 8


def test_blocks_that_fill_while_decoding_are_cached_too() -> None:
    """The answer is part of the next turn's prefix."""
    cache = make()
    request = start(cache, list(range(6)))
    cache.commit(request, 6)
    for token in range(6, 13):
        request.token_ids.append(token)
        assert cache.allocate_slots(request, 1)
        cache.commit(request, token + 1)
    cache.free(request)
    assert hit(cache, list(range(20))) == 12
    assert request.block_hashes == hash_request_tokens(range(13), 4)


def test_two_computations_of_one_prefix_end_as_one_copy() -> None:
    """The later commit takes over the earlier one's blocks, and its own are free at once."""
    cache, prompt = make(), list(range(10))
    first, second = start(cache, prompt), start(cache, prompt)
    cache.commit(first, 10)
    cache.commit(second, 10)
    assert [b.block_id for b in first.block_table[:2]] == [b.block_id for b in second.block_table[:2]]
    assert first.block_table[2] is not second.block_table[2]
    assert (cache.statistics().merged, cache.statistics().held, cache.statistics().num_free) == (2, 2, 12)
    assert [type(event) for event in cache.take_events()] == [BlockStored]
    cache.free(first)
    cache.free(second)
    cache.check_integrity()


def test_copies_can_be_kept_as_vllm_keeps_them() -> None:
    """The last block of a prompt of whole blocks is computed each time: a copy and an event each, evicted one by one.

    The older copy goes first, for the hit on the blocks before it did not touch it; the prefix is still found.
    """
    cache, prompt = make(6, merge_copies=False), list(range(8))
    assert (run(cache, prompt), run(cache, prompt)) == (0, 4)
    first, last = hash_request_tokens(prompt, 4)
    assert [event.block_hashes for event in cache.take_events() if isinstance(event, BlockStored)] == [
        [first, last],
        [last],
    ]
    assert (cache.statistics().held, cache.statistics().merged) == (3, 0)
    run(cache, [90] * 16)
    assert [event for event in cache.take_events() if isinstance(event, BlockRemoved)] == [BlockRemoved([last], "GPU")]
    assert hit(cache, [*prompt, 1]) == 8
    cache.check_integrity()


def test_requests_that_arrive_together_compute_their_prefix_once() -> None:
    """Three newcomers: the first computes, the others see that it does, and find all once it has."""
    cache, prefix = make(32), list(range(16))
    first = start(cache, [*prefix, 1])
    others = [CacheRequest("r", [*prefix, n]) for n in (2, 3)]
    for other in others:
        assert cache.get_computed_blocks(other).pending is first
    cache.commit(first, 8)
    computed = cache.get_computed_blocks(others[0])
    assert (computed.num_tokens, computed.pending) == (8, first)
    cache.commit(first, 17)
    for other in others:
        computed = cache.get_computed_blocks(other)
        assert (computed.num_tokens, computed.pending) == (16, None)


def test_nobody_waits_for_a_request_that_is_gone() -> None:
    """Freed or reset over, it is pending no longer."""
    cache, prompt = make(), list(range(9))
    request = start(cache, prompt)
    cache.free(request)
    assert cache.get_computed_blocks(CacheRequest("r", prompt)).pending is None
    start(cache, prompt)
    cache.reset()
    assert cache.get_computed_blocks(CacheRequest("r", prompt)).pending is None


def test_a_prompt_larger_than_the_pool_is_refused() -> None:
    """The error is the request's fault and says both sizes; a prompt of just the pool's size runs."""
    cache = make(4)
    with pytest.raises(PromptExceedsCache, match="17 tokens, and the whole KV cache holds 16") as caught:
        start(cache, list(range(17)))
    assert isinstance(caught.value, RequestError)
    assert caught.value.evidence == {"prompt_tokens": 17, "capacity": 16}
    assert run(cache, list(range(16))) == 0


def test_what_does_not_fit_now_changes_nothing() -> None:
    """Allocation is all or nothing: hit blocks that are free count against what is free."""
    cache = make(4)
    run(cache, list(range(8)))
    busy = start(cache, [90] * 4)
    request = CacheRequest("r", [*range(8), *[91] * 6])
    computed = cache.get_computed_blocks(request)
    before = cache.statistics()
    assert computed.num_tokens == 8
    assert not cache.can_allocate(request, 6, computed)
    assert not cache.allocate_slots(request, 6, computed)
    assert (cache.statistics(), request.block_table) == (before, [])
    cache.free(busy)
    assert cache.allocate_slots(request, 6, computed)


def test_a_lookup_that_went_stale_is_refused() -> None:
    """Between lookup and allocation the blocks were given away."""
    cache = make(4)
    run(cache, list(range(8)))
    request = CacheRequest("r", list(range(9)))
    computed = cache.get_computed_blocks(request)
    cache.free(start(cache, [90] * 16))
    with pytest.raises(IntegrityError, match="Look up again"):
        cache.allocate_slots(request, 1, computed)
    cache.check_integrity()


def test_a_preempted_request_finds_its_own_blocks() -> None:
    """Recompute begins where its cached blocks end."""
    cache = make()
    request = start(cache, list(range(10)))
    cache.commit(request, 10)
    cache.free(request)
    assert (request.block_table, request.num_computed_tokens) == ([], 0)
    computed = cache.get_computed_blocks(request)
    assert cache.allocate_slots(request, 2, computed)
    assert (request.num_computed_tokens, request.num_cached_tokens) == (8, 8)


def test_organisations_never_share_a_block() -> None:
    """Not with each other, not with those without one, whatever their salts spell."""
    cache, prompt = make(64), list(range(9))
    salts = [
        None,
        "org:5:org_1:2345",
        frame_salt(None, "org:5:org_1:2345"),
        frame_salt("org_1", "2345"),
        frame_salt("org_12345", ""),
    ]
    salts.remove("org:5:org_1:2345")
    assert len(set(salts)) == 4
    assert [run(cache, prompt, salt=salt) for salt in salts] == [0, 0, 0, 0]
    assert [run(cache, prompt, salt=salt) for salt in salts] == [8, 8, 8, 8]


def test_another_organisations_entry_changes_no_count_for_a_probe() -> None:
    """Hits, misses and what is pending are the same with and without somebody else's identical prompt."""
    prompt = list(range(9))
    seen = []
    for neighbour in (False, True):
        cache = make()
        if neighbour:
            run(cache, prompt, salt=frame_salt("other"))
            start(cache, [*prompt, 1, 2, 3], salt=frame_salt("other"))
        probe = CacheRequest("p", prompt, CacheKeys(frame_salt("mine")))
        computed = cache.get_computed_blocks(probe)
        seen.append((computed.num_tokens, computed.pending))
    assert seen == [(0, None), (0, None)]


def test_idle_blocks_expire_and_a_hit_refreshes_them() -> None:
    """Ten seconds from the last hit; a block in use is not idle."""
    cache, prompt = make(retention=Retention(idle_seconds=10)), list(range(9))
    run(cache, prompt, now=0)
    assert run(cache, prompt, now=9) == 8
    assert hit(cache, prompt, now=18.9) == 8
    assert hit(cache, prompt, now=19) == 0
    assert cache.statistics().expired == 2
    request = start(cache, prompt, now=20)
    cache.commit(request, 9, now=20)
    assert hit(cache, prompt, now=100) == 8
    cache.free(request, now=100)
    assert (hit(cache, prompt, now=109), hit(cache, prompt, now=110)) == (8, 0)


def test_nothing_outlives_its_maximum_age() -> None:
    """Hits do not help, nor does use; whoever uses it keeps its KV."""
    cache, prompt = make(retention=Retention(10, 25)), list(range(9))
    request = start(cache, prompt)
    cache.commit(request, 9, now=0)
    assert [hit(cache, prompt, now=now) for now in (24.9, 25)] == [8, 0]
    assert len(request.block_table) == 3
    cache.free(request, now=30)
    cache.check_integrity()


def test_a_pin_outlasts_the_idle_time_and_eviction() -> None:
    """An hour's pin survives idleness and a full round of other prompts, and ends on time."""
    cache, prompt = make(8, retention=Retention(idle_seconds=300)), list(range(9))
    request = start(cache, prompt)
    cache.commit(request, 9)
    assert cache.pin(request, 9, until=3600) == 2
    cache.free(request)
    for round_number in range(10):
        run(cache, [100 + round_number] * 24, now=1000)
    assert hit(cache, prompt, now=3599) == 8
    assert hit(cache, prompt, now=3600) == 0
    cache.check_integrity()


def test_a_chain_whose_pin_has_ended_loses_its_tail_first() -> None:
    """The blocks of a prompt come out of their pin together, and still in the order in which they were freed."""
    cache, prompt = make(6), list(range(13))
    request = start(cache, prompt)
    cache.commit(request, 13)
    assert cache.pin(request, 13, until=60) == 3
    cache.free(request)
    assert hit(cache, prompt, now=60) == 12
    start(cache, [90] * 16, now=60)
    assert hit(cache, prompt, now=60) == 8


def test_pins_never_stop_a_request() -> None:
    """When all that is free is pinned, it is taken all the same."""
    cache = make(4)
    request = start(cache, list(range(16)))
    cache.commit(request, 16)
    assert cache.pin(request, 16, until=3600) == 4
    cache.free(request)
    assert run(cache, [90] * 16) == 0


def test_reset_says_what_it_emptied() -> None:
    """Everything, an organisation, or one salt of it."""
    cache, prompt = make(64), list(range(8))
    a, a2, b = frame_salt("a"), frame_salt("a", "2"), frame_salt("b")
    for salt in (None, a, a2, b):
        run(cache, [*prompt, 1], salt=salt)
    assert cache.reset(organisation="a", cache_salt="2").num_blocks == 2
    assert [hit(cache, [*prompt, 1], salt=salt) for salt in (None, a, a2, b)] == [8, 8, 0, 8]
    assert cache.reset(organisation="a").num_tokens == 8
    assert [hit(cache, [*prompt, 1], salt=salt) for salt in (None, a, a2, b)] == [8, 0, 0, 8]
    cache.take_events()
    assert cache.reset().num_blocks == 4
    assert cache.take_events() == [AllBlocksCleared()]
    assert (cache.statistics().held, cache.statistics().reset) == (0, 8)
    cache.check_integrity()


def test_nothing_of_a_running_request_becomes_findable_after_a_reset() -> None:
    """It goes on and ends well; when it is admitted anew it shares again."""
    cache, prompt = make(), list(range(13))
    request = start(cache, prompt)
    cache.commit(request, 5)
    cache.reset()
    cache.commit(request, 13)
    assert hit(cache, prompt) == 0
    cache.free(request)
    cache.check_integrity()
    assert run(cache, prompt) == 0
    assert hit(cache, prompt) == 12


def test_events_carry_what_a_router_needs() -> None:
    """Parent, tokens and bare keys of each run of new blocks; removals come before the store that needed them.

    A hit stores nothing, though computing the last block once more takes a block.
    """
    cache = PrefixCache(4, BlockHasher(4), enable_events=True)
    request = CacheRequest("r", list(range(13)), CacheKeys("s", ("sql", "/sql")))
    computed = cache.get_computed_blocks(request)
    cache.allocate_slots(request, 13, computed)
    cache.commit(request, 8)
    cache.commit(request, 13)
    cache.free(request)
    hashes: list[BlockHash] = [*hash_request_tokens(range(13), 4, cache_salt="s", lora=("sql", "/sql"))]
    assert cache.take_events() == [
        BlockStored(hashes[:2], None, list(range(8)), 4, "sql", [("sql", "s"), ("sql",)], "GPU"),
        BlockStored(hashes[2:], hashes[1], list(range(8, 12)), 4, "sql", [("sql",)], "GPU"),
    ]
    run(cache, [90] * 8)
    other: list[BlockHash] = [*hash_request_tokens([90] * 8, 4)]
    assert cache.take_events() == [
        BlockRemoved([hashes[2]], "GPU"),
        BlockStored(other, None, [90] * 8, 4, None, [None, None], "GPU"),
    ]
    assert run(cache, [90] * 8) == 4
    assert cache.take_events() == [BlockRemoved([hashes[1]], "GPU")]


def test_statistics_count_tokens_at_admission() -> None:
    """Lookups alone count nothing; queries are hits and misses."""
    cache = make()
    run(cache, list(range(10)))
    hit(cache, list(range(10)))
    run(cache, list(range(10)))
    seen = cache.statistics()
    assert (seen.requests, seen.queries, seen.hits, seen.misses) == (2, 20, 8, 12)


def test_integrity_notices_a_lost_reference() -> None:
    """A block that a table has and the pool does not count."""
    cache = make()
    request = start(cache, list(range(4)))
    request.block_table.append(request.block_table[0])
    with pytest.raises(IntegrityError, match="is in 2 block tables"):
        cache.check_integrity()


def simulate(cache: PrefixCache, traffic: random.Random, begin: float, seconds: float) -> None:
    """Chat traffic: one request every three minutes, of many conversations that come and go, in a few organisations."""
    now = begin
    while now < begin + seconds:
        now += traffic.expovariate(1 / 180)
        conversation = traffic.randrange(int(now // 3600), int(now // 3600) + 5)
        prompt = [conversation] * 8 + [traffic.randrange(50) for _ in range(traffic.randrange(1, 60))]
        request = start(cache, prompt, salt=frame_salt(f"org-{conversation % 3}"), now=now)
        cache.commit(request, len(prompt), now)
        if traffic.random() < 0.2:
            cache.pin(request, 8, now + 3600)
        cache.free(request, now)
        cache.take_events()
        if traffic.random() < 0.01:
            cache.reset(organisation="org-1")
    cache.check_integrity()


def test_a_week_of_traffic_leaves_memory_flat() -> None:
    """Thousands of requests over a week: the seventh day holds no more memory than the second; counts add up."""
    cache, traffic, day = make(64, retention=Retention(600, 3600)), random.Random(7), 86_400.0
    tracemalloc.start()
    simulate(cache, traffic, 0, 2 * day)
    gc.collect()  # which also empties the interpreter's free lists
    early, _ = tracemalloc.get_traced_memory()
    simulate(cache, traffic, 2 * day, 5 * day)
    gc.collect()
    late, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert late - early < 20_000
    assert len(cache._lives) + len(cache._pins) <= 4 * 64
    assert cache._pending == {}
    seen = cache.statistics()
    assert seen.requests > 3000
    assert seen.queries == seen.hits + seen.misses
    assert seen.stored - seen.evicted == seen.held
