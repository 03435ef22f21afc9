"""The small model itself: what it answers, and what a cached prefix saves."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from benchmarks.vllm import small_model

from foreword.engine.kv_cache import KVCache
from foreword.engine.llm import LLM, EngineConfig, Failure
from foreword.generation import GenerateOutput, GenerateRequest, SamplingParams
from foreword.tokens.chat_template import load_chat_template
from foreword.tokens.loading import load_tokenizer

pytestmark = pytest.mark.slow

ONE = SamplingParams(temperature=0, max_tokens=1)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """SmolLM2 from its GGUF file."""
    weights = small_model().weights
    assert weights is not None
    with LLM(weights) as made:
        yield made


def prompt_of(number: int, length: int) -> list[int]:
    """Token ids that share no prefix with another number's."""
    return [(number * 7919 + index * 31) % 40_000 + 100 for index in range(length)]


def first_outputs(llm: LLM, prompts: list[list[int]]) -> list[GenerateOutput]:
    """Each prompt's first output, all asked at once, in the order they came."""
    for index, prompt in enumerate(prompts):
        llm.engine.add(GenerateRequest(str(index), prompt, ONE))
    outputs: list[GenerateOutput] = []
    while llm.engine.has_unfinished_requests():
        for output in llm.engine.step():
            assert not isinstance(output, Failure)
            outputs.append(output)
    return outputs


def test_paris(llm: LLM) -> None:
    """Asked for the capital of France, the model names Paris and stops."""
    folder = small_model().tokenizer
    assert folder is not None
    tokenizer, template = load_tokenizer(folder), load_chat_template(folder)
    assert template is not None
    question = {"role": "user", "content": "What is the capital of France?"}
    prompt = tokenizer.encode(template.render([question], add_generation_prompt=True))
    (output,) = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=24))
    assert tokenizer.decode(output.token_ids) == "The capital of France is Paris."
    assert output.finish_reason == "stop"


def test_a_cached_prompt_is_answered_twenty_times_sooner(llm: LLM) -> None:
    """Time to the first token of 2,000 tokens, cold against cached, median of three pairs."""
    ratios = []
    for number in range(3):
        times = []
        for cached in (0, 1984):
            start = time.perf_counter()
            (output,) = first_outputs(llm, [prompt_of(number, 2000)])
            times.append(time.perf_counter() - start)
            assert output.num_cached_tokens == cached
        ratios.append(times[0] / times[1])
    assert statistics.median(ratios) >= 20


def test_three_newcomers_compute_1600_shared_tokens_once(llm: LLM) -> None:
    """Three prompts of a new 1,600-token prefix and their own ends: one computes it, two find all of it."""
    prompts = [prompt_of(99, 1600) + prompt_of(100 + index, 50) for index in range(3)]
    outputs = first_outputs(llm, prompts)
    assert sorted(output.num_cached_tokens for output in outputs) == [0, 1600, 1600]


def logits_of(llm: LLM, prompt: list[int]) -> Any:
    """The logits [vocabulary] behind a prompt."""
    seen: list[Any] = []
    forward = llm.engine.model.forward

    def watched(chunks: Any) -> Any:
        logits = forward(chunks)
        seen.extend(np.array(row) for row in logits)
        return logits

    llm.engine.model.forward = watched  # type: ignore[method-assign]
    try:
        first_outputs(llm, [prompt])
    finally:
        llm.engine.model.forward = forward  # type: ignore[method-assign]
    (logits,) = seen
    return logits


@pytest.mark.parametrize("length", [17, 300, 1000])
def test_logits_with_a_hit_equal_those_without(llm: LLM, length: int) -> None:
    """All 49,152 of them to 1e-4, where all but the last block of the prompt was found."""
    prompt = prompt_of(200 + length, length)
    without, with_hit = logits_of(llm, prompt), logits_of(llm, prompt)
    assert with_hit.shape == (49_152,)
    assert llm.engine.statistics().prefix_cache.hits >= (length - 1) // 16 * 16
    np.testing.assert_allclose(with_hit, without, rtol=0, atol=1e-4)


STORIES = [
    "Once upon a time there was a small engine that could read very long letters,",
    "The recipe begins with two onions, a little butter and a great deal of patience:",
    "In the year 1847 a ship left the harbour of Hamburg with forty passengers, and",
]
WORDS = ["red", "blue", "old", "new", "cold", "warm", "tall", "small", "loud", "quiet"]


def fifty_prompts() -> list[list[int]]:
    """Prompts of three stories that go on in ten ways, of many lengths."""
    folder = small_model().tokenizer
    assert folder is not None
    tokenizer = load_tokenizer(folder)
    return [
        list(tokenizer.encode(STORIES[n % 3] + f" and then a {WORDS[n % 10]} one" * (1 + n % 4) + f" number {n} came"))
        for n in range(50)
    ]


def answers(config: EngineConfig, prompts: list[list[int]], *, alone: bool) -> tuple[dict[str, list[int]], LLM]:
    """Greedy answers of 40 tokens from a new engine, each prompt under a salt of its own if alone; and the engine."""
    weights = small_model().weights
    assert weights is not None
    greedy = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    found: dict[str, list[int]] = {}
    with LLM(weights, config) as llm:
        for number, prompt in enumerate(prompts):
            salt = str(number) if alone else None
            llm.engine.add(GenerateRequest(str(number), prompt, greedy, cache_salt=salt))
        while llm.engine.has_unfinished_requests():
            for output in llm.engine.step():
                assert not isinstance(output, Failure)
                found.setdefault(output.request_id, []).extend(output.token_ids)
            llm.engine.check_integrity()
    return found, llm


def test_fifty_prompts_are_answered_alike_whatever_the_cache_does(llm: LLM) -> None:
    """Greedy tokens with hits, preemption, small chunks and eviction are those of an engine that has none of them."""
    prompts = fifty_prompts()
    memory = 14 * KVCache.block_bytes(llm.engine.model_config, 16)
    pressed = EngineConfig(kv_cache_memory=memory, max_num_batched_tokens=32, max_num_seqs=8)
    under_pressure, engine = answers(pressed, prompts, alone=False)
    cold, roomy = answers(EngineConfig(), prompts, alone=True)
    assert under_pressure == cold
    seen, never = engine.engine.statistics(), roomy.engine.statistics()
    assert seen.preemptions > 0
    assert seen.prefix_cache.evicted > 0
    assert seen.prefix_cache.hits > 0
    assert max(map(len, prompts)) > 32
    assert (never.preemptions, never.prefix_cache.evicted, never.prefix_cache.hits) == (0, 0, 0)
