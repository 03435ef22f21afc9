"""Choose the next token from logits, by vLLM's rules and in vLLM's order.

Biases, then penalties; greedy stops there. Else temperature, min_p, top_k and top_p, and one draw. Log probabilities are
those of the untouched logits. Source: vllm/v1/sample/sampler.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from foreword.engine.weights import Array
from foreword.generation import SamplingParams, TokenLogprobs

_GREEDY_BELOW = 1e-5
"""vLLM's smallest temperature that is not greedy."""
_NUCLEUS_GUESS = 1024
"""Tokens looked at first for the nucleus; only a flat distribution needs the whole vocabulary sorted."""

Probabilities = NDArray[np.float64]


class Sampler:
    """The sampling state of one request: its random stream and the tokens that penalties count.

    Draws depend on the request's seed and logits alone, whatever is computed beside it.
    """

    def __init__(self, params: SamplingParams, prompt: SequenceOf[int], stop_token_ids: frozenset[int]) -> None:
        self.params = params
        self._random = np.random.default_rng(None if params.seed is None else params.seed % 2**64)
        self._counts: Counter[int] = Counter()
        self._prompt_ids = np.unique(prompt) if params.repetition_penalty != 1 else np.empty(0, np.int64)
        self._stop_token_ids = sorted(stop_token_ids)
        self._bias_ids = list(params.logit_bias)
        self._bias = np.array(list(params.logit_bias.values()), np.float32)

    def sample(self, logits: Array) -> tuple[int, TokenLogprobs | None]:
        """The next token, and its log probabilities if asked for. ``logits`` [vocabulary] is used up."""
        raw = logits.copy() if self.params.logprobs is not None else None
        self._bias_logits(logits)
        self._penalise(logits)
        token_id = int(logits.argmax()) if self.params.temperature < _GREEDY_BELOW else self._draw(logits)
        self._counts[token_id] += 1
        return token_id, None if raw is None else _logprobs(raw, token_id, self.params.logprobs or 0)

    def _bias_logits(self, logits: Array) -> None:
        if self._bias_ids:
            logits[self._bias_ids] += self._bias
        if self._counts.total() < self.params.min_tokens:
            logits[self._stop_token_ids] = -np.inf

    def _penalise(self, logits: Array) -> None:
        params = self.params
        ids = np.fromiter(self._counts, np.int64, len(self._counts))
        if params.repetition_penalty != 1:
            seen = np.union1d(self._prompt_ids, ids)
            values = logits[seen]
            penalty = np.float32(params.repetition_penalty)
            logits[seen] = np.where(values > 0, values / penalty, values * penalty)
        if params.frequency_penalty or params.presence_penalty:
            counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
            logits[ids] -= counts * np.float32(params.frequency_penalty) + np.float32(params.presence_penalty)

    def _draw(self, logits: Array) -> int:
        """One draw from the truncated distribution, by inversion over ascending token ids."""
        ids, weights = _truncate(logits / np.float32(self.params.temperature), self.params)
        cumulative = weights.cumsum()
        at = int(cumulative.searchsorted(self._random.random() * cumulative[-1], side="right"))
        return int(ids[min(at, len(ids) - 1)])


def _truncate(logits: Array, params: SamplingParams) -> tuple[NDArray[np.int64], Probabilities]:
    """The token ids left by min_p, top_k and top_p, ascending, with weights that need not sum to 1."""
    weights: Probabilities = np.exp(logits - logits.max(), dtype=np.float64)
    if params.min_p > 0:
        weights[weights < params.min_p] = 0
    if 0 < params.top_k < len(weights):
        weights[weights < np.partition(weights, -params.top_k)[-params.top_k]] = 0
    if params.top_p < 1:
        weights[weights < _nucleus_threshold(weights, params.top_p)] = 0
    ids = np.flatnonzero(weights)
    return ids, weights[ids]


def _nucleus_threshold(weights: Probabilities, top_p: float) -> float:
    """The least weight in the smallest set of likeliest tokens whose probability reaches ``top_p``."""
    needed = top_p * weights.sum()
    for size in (_NUCLEUS_GUESS, len(weights)):
        likeliest = np.sort(np.partition(weights, -size)[-size:] if size < len(weights) else weights)[::-1]
        at = int(likeliest.cumsum().searchsorted(needed))
        if at < len(likeliest):
            return float(likeliest[at])
    return 0.0


def _logprobs(logits: Array, token_id: int, count: int) -> TokenLogprobs:
    shifted = logits - logits.max()
    logprobs = shifted - np.log(np.exp(shifted, dtype=np.float64).sum())
    count = min(count, len(logprobs))
    top = np.argpartition(-logprobs, count - 1)[:count] if count else np.empty(0, np.int64)
    top = top[np.lexsort((top, -logprobs[top]))]
    likeliest = tuple((int(i), float(logprobs[i])) for i in top)
    return TokenLogprobs(token_id, float(logprobs[token_id]), likeliest)
