"""Block caches hold what an engine's pool would hold."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.errors import ConfigError
from foreword.trace.readers import read_mooncake
from foreword.trace.replay import BlockCache

TRACE = Path(__file__).parents[2] / "benchmarks" / "data" / "mooncake_conversation.jsonl"


@pytest.mark.parametrize("capacity, hits", [(1_000, 12_847), (10_000, 61_046), (30_000, 93_978), (200_000, 105_710)])
def test_mooncake_hits_at_every_capacity(capacity: int, hits: int) -> None:
    """Block hits of the conversation trace under tail-first LRU, as others' exact simulators count them."""
    cache, found = BlockCache(capacity), 0
    for request in read_mooncake(TRACE):
        found += cache.match(request.blocks)
        cache.admit(request.blocks)
    assert found == hits
    cache.check_integrity()


def test_a_chain_loses_its_tail_first() -> None:
    """When room is needed, the least recent chain's last block goes before its first."""
    cache = BlockCache(4)
    cache.admit((1, 2, 3))
    cache.admit((7, 8))
    assert (cache.match((1, 2, 3)), cache.match((7, 8))) == (2, 2)


def test_a_prompt_over_the_capacity_keeps_its_opening() -> None:
    """What fits of a huge prompt is its beginning, which alone can be matched."""
    cache = BlockCache(3)
    cache.admit(tuple(range(10)))
    assert cache.match(tuple(range(10))) == 3


def test_a_cache_of_nothing_is_refused() -> None:
    """At least one block."""
    with pytest.raises(ConfigError, match="holds nothing"):
        BlockCache(0)


@given(st.integers(1, 12), st.lists(st.lists(st.integers(0, 20), max_size=8, unique=True), max_size=40))
def test_matches_a_naive_twin(capacity: int, prompts: list[list[int]]) -> None:
    """A list kept in order of use says the same after every step."""
    cache = BlockCache(capacity)
    order: list[int] = []
    for prompt in prompts:
        count = 0
        while count < len(prompt) and prompt[count] in order:
            count += 1
        assert cache.match(prompt) == count
        cache.admit(prompt)
        for block in reversed(prompt[:capacity]):
            if block in order:
                order.remove(block)
            order.append(block)
        order = order[-capacity:]
        cache.check_integrity()
        assert cache.statistics().held == len(order)
