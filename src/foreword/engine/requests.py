"""Check a request against the model before it is queued, and make a sequence of it."""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from foreword.core.cache_request import CacheRequest
from foreword.core.extra_keys import CacheKeys
from foreword.engine.sampling import Sampler
from foreword.engine.sequence import Sequence
from foreword.errors import ContextOverflow, RequestError
from foreword.generation import GenerateRequest, SamplingParams
from foreword.tokens.tokenizer import TokenIds

_MAX_LOGPROBS = 20
"""vLLM's default --max-logprobs, and OpenAI's limit."""


def check_request(
    request: GenerateRequest, vocab_size: int, max_model_len: int, *, taken: Collection[str] = ()
) -> None:
    """Raise RequestError, or ContextOverflow, for what the model cannot answer."""
    if request.request_id in taken:
        raise RequestError(f"Request {request.request_id!r} is already running.", hint="Give each request its own id.")
    length = len(request.token_ids)
    if not length:
        raise RequestError("The prompt has no tokens.", hint="Send at least one.")
    if length >= max_model_len:
        raise ContextOverflow(
            f"The prompt has {length} tokens and the model's context is {max_model_len}, answer included.",
            hint="Shorten the prompt.",
            prompt_tokens=length,
            max_model_len=max_model_len,
        )
    _check_ids(_array(request.token_ids), "The prompt", vocab_size)
    check_sampling(request.sampling, vocab_size)


def check_sampling(params: SamplingParams, vocab_size: int) -> None:
    """Raise RequestError for a sampling parameter out of its range; the ranges are vLLM's."""
    for name, value, low, high in (
        ("max_tokens", 1 if params.max_tokens is None else params.max_tokens, 1, math.inf),
        ("min_tokens", params.min_tokens, 0, math.inf if params.max_tokens is None else params.max_tokens),
        ("temperature", params.temperature, 0, math.inf),
        ("top_k", params.top_k, -1, math.inf),
        ("min_p", params.min_p, 0, 1),
        ("presence_penalty", params.presence_penalty, -2, 2),
        ("frequency_penalty", params.frequency_penalty, -2, 2),
        ("logprobs", params.logprobs or 0, 0, _MAX_LOGPROBS),
    ):
        if not low <= value <= high:
            raise RequestError(f"{name} is {value}.", hint=f"It must be {_range(low, high)}.", parameter=name)
    for name, value, high in (("top_p", params.top_p, 1), ("repetition_penalty", params.repetition_penalty, math.inf)):
        if not 0 < value <= high:
            raise RequestError(f"{name} is {value}.", hint=f"It must be above {_range(0, high)}.", parameter=name)
    _check_ids(np.array(params.stop_token_ids, object), "stop_token_ids", vocab_size)
    _check_ids(np.array(list(params.logit_bias), object), "logit_bias", vocab_size)


def sequence_of(request: GenerateRequest, eos_token_ids: tuple[int, ...], max_model_len: int) -> Sequence:
    """A sequence for a request that has been checked."""
    params = request.sampling
    ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset(eos_token_ids))
    token_ids: list[int] = _array(request.token_ids).tolist()
    limit = max_model_len if params.max_tokens is None else len(token_ids) + params.max_tokens
    return Sequence(
        request=request,
        cache=CacheRequest(request.request_id, token_ids, CacheKeys(cache_salt=request.cache_salt)),
        max_length=min(limit, max_model_len),
        stop_token_ids=ends,
        sampler=Sampler(params, token_ids, ends),
    )


def _array(token_ids: SequenceOf[int]) -> NDArray[np.int64]:
    """The ids as an array; TokenIds and arrays are not walked one by one."""
    if isinstance(token_ids, TokenIds):
        return np.frombuffer(token_ids.buffer, np.uint32).astype(np.int64)
    try:
        return np.asarray(token_ids, np.int64)
    except (TypeError, ValueError, OverflowError):
        raise RequestError("The prompt is not a list of integers.", hint="Send token ids.") from None


def _check_ids(ids: NDArray[np.int64] | NDArray[np.object_], where: str, vocab_size: int) -> None:
    if not len(ids):
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        raise RequestError(
            f"{where} has token id {low if low < 0 else high}.",
            hint=f"The model's ids are 0 to {vocab_size - 1}.",
            parameter=where,
        )


def _range(low: float, high: float) -> str:
    return f"{low:g} or more" if high == math.inf else f"{low:g} to {high:g}"
