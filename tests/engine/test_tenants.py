"""No count and no time lets one organisation learn what another asked: a probe's distributions, with and without."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engine.test_prefix_caching import ONE, Counting, ids

from foreword.core.extra_keys import frame_salt
from foreword.core.retention import IN_MEMORY
from foreword.generation import PromptCacheRetention

VICTIM, PROBER = frame_salt("victim"), frame_salt("prober")
LENGTH = 157


class Probe:
    """Engines on which a victim has asked, or another prompt was asked in its place, and what a probe sees of it."""

    def __init__(self, tiny: Any, folder: Path, retention: PromptCacheRetention) -> None:
        self.tiny, self.folder, self.retention = tiny, folder, retention

    def seen(self, seed: int, *, asked: bool) -> tuple[int, int, int, float]:
        """Cached tokens, computed tokens, steps and seconds of a probe for a prompt that a victim asked, or did not."""
        folder = self.folder / f"{seed}-{asked}"
        counting = Counting(self.tiny, retention=IN_MEMORY, max_num_batched_tokens=32, prompt_cache_disk=folder)
        counting.ask(ids(LENGTH, seed if asked else seed + 10_000), ONE, cache_salt=VICTIM, retention=self.retention)
        counting.computed = 0
        counting.add("probe", ids(LENGTH, seed), ONE, cache_salt=PROBER)
        start, steps, outputs = time.perf_counter(), 0, []
        while counting.engine.has_unfinished_requests():
            outputs += counting.engine.step()
            steps += 1
        seconds = time.perf_counter() - start
        counting.engine.close()
        return outputs[0].num_cached_tokens, counting.computed, steps, seconds  # type: ignore[union-attr]


def p_value(one: list[float], other: list[float], chance: random.Random, rounds: int = 2000) -> float:
    """How often chance alone parts the medians as far as they are: a permutation test, which knows no distribution."""
    apart = abs(statistics.median(one) - statistics.median(other))
    pooled, further = one + other, 0
    for _ in range(rounds):
        chance.shuffle(pooled)
        further += abs(statistics.median(pooled[: len(one)]) - statistics.median(pooled[len(one) :])) >= apart
    return (further + 1) / (rounds + 1)


@pytest.mark.parametrize("retention", ["in_memory", "24h"])
def test_a_probe_sees_the_same_with_and_without(tiny: Any, tmp_path: Path, retention: PromptCacheRetention) -> None:
    """Counts are equal one for one. Times are told apart by nothing but chance; the same test does tell a real hit."""
    probe, chance = Probe(tiny, tmp_path, retention), random.Random(0)
    times: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(12):
        counts = {}
        for asked in chance.sample([True, False], 2):
            *counts[asked], seconds = probe.seen(seed, asked=asked)
            times[asked].append(seconds)
        assert counts[True] == counts[False] == [0, LENGTH, 5]
    assert p_value(times[True], times[False], chance) > 0.001


def test_the_probe_would_notice_a_hit(make_tiny: Callable[..., Any]) -> None:
    """The same measure on one's own prompt: counts and times differ, so that the test above can fail."""
    counting = Counting(make_tiny(), retention=IN_MEMORY, max_num_batched_tokens=32)
    times: dict[int, list[float]] = {0: [], 156: []}
    for seed in range(12):
        for cached, seen in times.items():
            start = time.perf_counter()
            assert counting.ask(ids(LENGTH, seed), ONE, cache_salt=PROBER)[0].num_cached_tokens == cached
            seen.append(time.perf_counter() - start)
    counting.engine.close()
    assert p_value(times[0], times[156], random.Random(0)) < 0.01
