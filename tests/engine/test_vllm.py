"""The embedded engine against a live vLLM with the same weights: ids, prompts and answers (make test-engine).

What a prefill costs beside vLLM's is measured, not tested: ``python -m benchmarks engine``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks.vllm import VLLMWorker, model_folder

from foreword.engine import LLM
from foreword.generation import SamplingParams
from foreword.tokens.chat_template import load_chat_template
from foreword.tokens.loading import load_tokenizer

pytestmark = pytest.mark.engine

QUESTIONS = [
    "What is the capital of France?",
    "Name three primary colours.",
    "Why is the sky blue?",
    "Translate 'good morning' into Spanish.",
    "What is 12 times 12?",
    "Write a haiku about the sea.",
    "Who wrote Hamlet?",
    "List the planets of the solar system.",
    "How do I boil an egg?",
    "What does HTTP stand for?",
    "Give me a synonym for 'happy'.",
    "Explain recursion in one sentence.",
    "Was ist die Hauptstadt von Deutschland?",
    "Écris une phrase en français.",
    "def fibonacci(n):",
    "SELECT name FROM users WHERE",
    "Tell me a joke about cats.",
    "What is photosynthesis?",
    "Sort these numbers: 5, 3, 9, 1.",
    "Summarise: the quick brown fox jumps over the lazy dog.",
]
NOISE = 0.35
"""How far a log probability may be moved by vLLM's bfloat16; the largest seen was a third of this."""


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """Our engine on the very folder vLLM serves."""
    with LLM(model_folder()) as made:
        yield made


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """The questions as chat prompts, rendered and tokenised by us."""
    tokenizer, template = load_tokenizer(model_folder()), load_chat_template(model_folder())
    assert template is not None
    rendered = [template.render([_user(question)], add_generation_prompt=True) for question in QUESTIONS]
    return [list(tokenizer.encode(text)) for text in rendered]


def _user(question: str) -> dict[str, Any]:
    return {"role": "user", "content": question}


def test_ids_and_template_equal_vllms(vllm: VLLMWorker, prompts: list[list[int]]) -> None:
    """Every conversation, rendered and tokenised by vLLM, has the ids it has here, and every bare text too."""
    tokenizer = load_tokenizer(model_folder())
    for question, ids in zip(QUESTIONS, prompts, strict=True):
        chat = {"messages": [_user(question)], "add_generation_prompt": True}
        assert vllm.call("/tokenize", chat)["tokens"] == ids
        bare = {"prompt": question, "add_special_tokens": False}
        assert vllm.call("/tokenize", bare)["tokens"] == list(tokenizer.encode(question))


def _vllm_first_tokens(vllm: VLLMWorker, ids: list[int], count: int) -> list[dict[int, float]]:
    """The likeliest tokens of vLLM and their log probabilities at each greedy position."""
    asked = {
        "prompt": ids,
        "max_tokens": count,
        "temperature": 0,
        "logprobs": 10,
        "return_tokens_as_token_ids": True,
        "ignore_eos": True,
    }
    (choice,) = vllm.call("/v1/completions", asked)["choices"]
    return [
        {int(token.removeprefix("token_id:")): value for token, value in position.items()}
        for position in choice["logprobs"]["top_logprobs"]
    ]


def test_first_tokens_and_logprobs_agree(vllm: VLLMWorker, llm: LLM, prompts: list[list[int]]) -> None:
    """Greedy first tokens are vLLM's unless two are within noise of each other; likely tokens' logprobs agree."""
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=10, ignore_eos=True)
    for ids, output in zip(prompts, llm.generate(prompts, params), strict=True):
        assert output.logprobs is not None
        ours = dict(output.logprobs[0].top)
        (theirs,) = _vllm_first_tokens(vllm, ids, 1)
        likely = [token for token, value in theirs.items() if value > -4 and token in ours]
        assert max(abs(ours[token] - theirs[token]) for token in likely) < NOISE
        best = max(theirs, key=lambda token: theirs[token])
        assert theirs[best] - theirs.get(output.token_ids[0], -99) < NOISE


def test_paris(llm: LLM, prompts: list[list[int]]) -> None:
    """The greedy answer to the first question names Paris."""
    (output,) = llm.generate(prompts[:1], SamplingParams(temperature=0, max_tokens=24))
    assert "Paris" in load_tokenizer(model_folder()).decode(output.token_ids)
    assert output.finish_reason == "stop"
