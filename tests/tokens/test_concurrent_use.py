"""Many threads, one cache, eviction and clear() all the while."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from foreword import CachedTokenizer, L0Config, L1Config, load_tokenizer
from foreword.testing.crafted import RECIPES, write
from foreword.testing.histories import Oracle, Step, interleaved, replay
from foreword.testing.reference import load_reference
from foreword.testing.texts import families


@pytest.mark.parametrize("name", ["cl100k-like", "contained-tokens", "gemma-like", "unigram-t5"])
def test_threads_get_the_reference_s_ids_while_entries_are_evicted(name: str, tmp_path: Path) -> None:
    """Eight threads over the same texts in different orders; one of them clears now and then."""
    reference = load_reference(write(RECIPES[name], tmp_path), name)
    oracle, made = Oracle(reference), families(7, reference.added_tokens, 40)
    for step in interleaved(made, random.Random(0)):
        assert step is None or oracle(step) is not None
    cache = CachedTokenizer(
        load_tokenizer(tmp_path), l0=L0Config(max_entries=9, max_memory=40_000), l1=L1Config(max_memory=30_000)
    )

    def client(number: int) -> int:
        history: list[Step] = list(interleaved(made, random.Random(number)))
        if number == 0:
            history[10::20] = [None] * len(history[10::20])
        return replay(cache, history, oracle)

    with ThreadPoolExecutor(8) as pool:
        compared = sum(pool.map(client, range(8)))
    cache.check_integrity()
    statistics = cache.statistics()
    assert compared > 8 * 70
    assert statistics.l0.evictions > 0
    assert statistics.l1.bytes <= 30_000
