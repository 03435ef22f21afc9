"""The sampler: distributions, truncation, penalties and their order, as vLLM defines them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from foreword.engine.sampling import Sampler
from foreword.generation import SamplingParams

Logits = NDArray[np.float32]
LOGITS: Logits = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.05])).astype(np.float32)


def draw(
    count: int, logits: Logits = LOGITS, prompt: Sequence[int] = (), stops: Sequence[int] = (), **params: Any
) -> list[int]:
    """Tokens drawn one after another from the same logits."""
    sampler = Sampler(SamplingParams(**params), prompt, frozenset(stops))
    return [sampler.sample(logits.copy())[0] for _ in range(count)]


def frequencies(**params: Any) -> NDArray[np.float64]:
    """Shares of 20,000 draws."""
    counts = Counter(draw(20_000, seed=7, **params))
    return np.array([counts[index] / 20_000 for index in range(5)])


@pytest.mark.parametrize(
    "params, expected",
    [
        ({}, [0.4, 0.3, 0.15, 0.1, 0.05]),
        ({"temperature": 0.5}, [0.5614, 0.3158, 0.0789, 0.0351, 0.0088]),
        ({"temperature": 2.0}, [0.3034, 0.2627, 0.1858, 0.1517, 0.1073]),
        ({"top_k": 2}, [0.5714, 0.4286, 0, 0, 0]),
        ({"top_k": 1}, [1, 0, 0, 0, 0]),
        ({"top_k": 5}, [0.4, 0.3, 0.15, 0.1, 0.05]),
        ({"top_p": 0.75}, [0.4706, 0.3529, 0.1765, 0, 0]),
        ({"top_p": 0.01}, [1, 0, 0, 0, 0]),
        ({"min_p": 0.3}, [0.4706, 0.3529, 0.1765, 0, 0]),
        ({"top_k": 3, "top_p": 0.6}, [0.5714, 0.4286, 0, 0, 0]),
        ({"logit_bias": {4: 3.0}}, [0.2051, 0.1538, 0.0769, 0.0513, 0.5150]),
    ],
    ids=str,
)
def test_shares_of_draws(params: dict[str, Any], expected: list[float]) -> None:
    """Draws fall as the truncated, tempered distribution says, to within sampling noise."""
    np.testing.assert_allclose(frequencies(**params), expected, atol=0.012)


def test_top_k_keeps_ties() -> None:
    """Tokens equal to the k-th are all kept, as vLLM keeps them."""
    assert {0, 1, 2} == set(draw(200, np.array([1, 1, 1, 0], np.float32), top_k=1, seed=0))


def test_top_p_over_a_flat_vocabulary() -> None:
    """A nucleus wider than the first guess is found in the whole vocabulary."""
    nearly_flat = -np.arange(4096, dtype=np.float32) * np.float32(1e-4)
    kept = set(draw(4_000, nearly_flat, top_p=0.5, seed=0))
    assert 1600 < max(kept) < 2048


def test_greedy_ignores_truncation_but_not_biases() -> None:
    """Temperature 0 takes the largest logit after biases."""
    assert draw(1, temperature=0, top_p=0.1, min_p=0.9) == [0]
    assert draw(1, temperature=0, logit_bias={3: 5.0}) == [3]
    assert draw(1, temperature=0, logit_bias={0: -100.0}) == [1]


def test_presence_penalty_strikes_once() -> None:
    """Every token of the answer is lowered once, however often it came; the prompt does not count."""
    assert draw(4, temperature=0, presence_penalty=0.5, prompt=(1, 1, 0)) == [0, 1, 0, 0]


def test_frequency_penalty_grows() -> None:
    """Every occurrence lowers a token further."""
    assert draw(6, temperature=0, frequency_penalty=0.4) == [0, 1, 0, 1, 0, 2]


def test_repetition_penalty_counts_prompt_and_answer() -> None:
    """Logits above zero are divided, those below multiplied, for tokens of prompt and answer alike."""
    logits = np.array([2.0, 1.5, -1.0, -1.2], np.float32)
    assert draw(3, logits, temperature=0, repetition_penalty=1.5, prompt=(0,)) == [1, 0, 0]
    below = np.array([-2.0, -2.0, -1.0, -1.2], np.float32)
    assert draw(1, below, temperature=0, repetition_penalty=1.5, prompt=(2,)) == [3]


def test_min_tokens_holds_stop_tokens_back() -> None:
    """A stop token cannot be drawn before min_tokens are out."""
    assert draw(4, temperature=0, min_tokens=3, stops=(0,)) == [1, 1, 1, 0]


def test_logprobs_are_of_untouched_logits() -> None:
    """Penalties, biases and temperature leave the reported log probabilities alone; no more than asked are given."""
    sampler = Sampler(SamplingParams(temperature=0, logit_bias={4: 9.0}, logprobs=2), (), frozenset())
    token_id, logprobs = sampler.sample(LOGITS.copy())
    assert logprobs is not None
    assert token_id == logprobs.token_id == 4
    assert pytest.approx(np.log(0.05), abs=1e-5) == logprobs.logprob
    assert [index for index, _ in logprobs.top] == [0, 1]
    np.testing.assert_allclose([value for _, value in logprobs.top], LOGITS[:2], atol=1e-5)


def test_zero_logprobs_report_the_sampled_token_only() -> None:
    """Logprobs 0 is not the same as none."""
    _, asked = Sampler(SamplingParams(logprobs=0, seed=1), (), frozenset()).sample(LOGITS.copy())
    _, not_asked = Sampler(SamplingParams(seed=1), (), frozenset()).sample(LOGITS.copy())
    assert asked is not None
    assert asked.top == ()
    assert not_asked is None


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, 2**70])
def test_any_integer_is_a_seed(seed: int) -> None:
    """Every integer is a seed, and repeats its draws."""
    assert draw(50, seed=seed) == draw(50, seed=seed)


def test_without_a_seed_draws_differ() -> None:
    """Two requests without a seed are independent."""
    assert draw(50) != draw(50)


def test_extreme_logits_are_survived() -> None:
    """Infinities among the logits neither warn nor are drawn."""
    logits = np.array([-np.inf, 80.0, -np.inf, 79.0], np.float32)
    assert {1, 3} == set(draw(100, logits, seed=3, top_p=0.99, min_p=0.01))
