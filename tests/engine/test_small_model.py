"""The small model itself: what it answers, and what a cached prefix saves."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import pytest
from benchmarks.vllm import small_model

from foreword.engine.llm import LLM, Failure
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
