"""What the disk tier is for: bringing a prompt back is quicker than computing it."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest
from benchmarks.vllm import small_model
from tests.engine.test_small_model import ONE, prompt_of

from foreword.engine.llm import EngineConfig, Failure, LLMEngine
from foreword.engine.weights import open_model
from foreword.generation import GenerateOutput, GenerateRequest

pytestmark = pytest.mark.slow


def first_token(engine: LLMEngine, prompt: list[int]) -> tuple[float, GenerateOutput]:
    """Seconds to the first token of a prompt that asks for a day, and the token."""
    engine.add(GenerateRequest("only", prompt, ONE, retention="24h"))
    start = time.perf_counter()
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    seconds = time.perf_counter() - start
    (output,) = outputs
    assert not isinstance(output, Failure)
    return seconds, output


def test_2000_tokens_come_back_five_times_sooner_than_they_are_computed(tmp_path: Path) -> None:
    """Cold against from disk, three pairs, the small model; the same first token."""
    weights = small_model().weights
    assert weights is not None
    engine = LLMEngine(open_model(weights), EngineConfig(prompt_cache_disk=tmp_path / "disk"))
    assert engine.disk is not None
    ratios = []
    for number in range(3):
        cold, computed = first_token(engine, prompt_of(number, 2000))
        engine.disk.store.flush()
        engine.prefix_cache.reset()
        back, restored = first_token(engine, prompt_of(number, 2000))
        assert (computed.num_cached_tokens, restored.num_cached_tokens) == (0, 1984)
        assert restored.token_ids == computed.token_ids
        print(f"{cold:.2f} s computed, {back:.3f} s from disk")  # noqa: T201
        ratios.append(cold / back)
    engine.close()
    assert statistics.median(ratios) >= 5
