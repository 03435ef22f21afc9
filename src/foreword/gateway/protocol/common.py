"""What chat, completions and responses share: sampling fields, usage, and the limits of both."""

from __future__ import annotations

from typing import Annotated, Any, get_args

import msgspec

from foreword.gateway.errors import Refusal, unsupported
from foreword.generation import PromptCacheRetention, SamplingParams

Count = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
NonNegative = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
Temperature = Annotated[float, msgspec.Meta(ge=0, le=100)]
Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]
TopP = Annotated[float, msgspec.Meta(gt=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Repetition = Annotated[float, msgspec.Meta(gt=0, le=100)]
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Choices = Annotated[int, msgspec.Meta(ge=1, le=128)]
Salt = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
CacheKey = Annotated[str, msgspec.Meta(max_length=1024)]

MAX_LOGPROBS = 20


class StreamOptions(msgspec.Struct):
    """Whether a stream ends with a chunk of usage, or carries it all along."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class SamplingFields(msgspec.Struct, kw_only=True):
    """Fields of OpenAI's and vLLM's requests that say how the next token is chosen. None stands for the default."""

    model: str
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=2**31)] | None = None
    min_p: Probability | None = None
    seed: Seed | None = None
    min_tokens: NonNegative = 0
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Repetition | None = None
    logit_bias: dict[str, Annotated[float, msgspec.Meta(ge=-100, le=100)]] | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool = False
    stream: bool | None = False
    cache_salt: Salt | None = None
    prompt_cache_key: CacheKey | None = None
    prompt_cache_retention: str | None = None
    user: str | None = None

    def sampling_params(self, *, max_tokens: int | None, logprobs: int | None = None) -> SamplingParams:
        """The worker's parameters; raises Refusal for a bias on what is no token id."""
        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(0, self.top_k or 0),
            min_p=self.min_p or 0.0,
            seed=self.seed,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=self.ignore_eos,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            logit_bias=_logit_bias(self.logit_bias or {}),
            logprobs=logprobs,
        )


def check_retention(given: str | None) -> PromptCacheRetention:
    """The retention of a request, in memory unless it says otherwise; raises Refusal for one there is not."""
    for known in get_args(PromptCacheRetention):
        if given in (None, known):
            retention: PromptCacheRetention = known
            return retention
    why = f"there is no retention {str(given)[:50]!r}, only 'in_memory' and '24h'."
    raise unsupported("prompt_cache_retention", why)


def _logit_bias(given: dict[str, float]) -> dict[int, float]:
    wrong = next((key for key in given if not _is_token_id(key)), None)
    if wrong is not None:
        message = f"'logit_bias' has the key {wrong[:50]!r}, which is no token id."
        raise Refusal(message, param="logit_bias", code="invalid_value")
    return {int(key): value for key, value in given.items()}


def _is_token_id(key: str) -> bool:
    """The length is looked at first: Python refuses to read thousands of digits."""
    return len(key) <= len(str(2**32)) and key.isascii() and key.isdigit() and int(key) < 2**32


def stop_strings(given: str | list[str] | None, limit: int) -> tuple[str, ...]:
    """The stop strings of a request; raises Refusal for an empty one or too many."""
    strings = (given,) if isinstance(given, str) else tuple(given or ())
    if len(strings) > limit:
        message = f"'stop' has {len(strings)} strings, over the limit of {limit}."
        raise Refusal(message, param="stop", code="invalid_value")
    if "" in strings:
        raise Refusal("'stop' has an empty string.", param="stop", code="invalid_value")
    return strings


def refuse_unsupported(request: msgspec.Struct, reasons: dict[str, str]) -> None:
    """Raise Refusal for the first field that is set and not offered; null and false are let through, 0 and [] are not."""
    for field, why in reasons.items():
        value = getattr(request, field)
        if value is not None and value is not False:
            raise unsupported(field, why)


def check_response_format(given: Any, field: str) -> None:
    """Raise Refusal unless the format is absent or plain text: the answer cannot be held to a grammar here."""
    if given is None:
        return
    if not isinstance(given, dict) or not isinstance(given.get("type"), str):
        message = f"{field!r} is no object with a 'type'."
        raise Refusal(message, param=field, code="invalid_value", hint='Send {"type": "text"}, or leave it out.')
    if given["type"] != "text":
        raise unsupported(field, f"type {given['type'][:50]!r} is not supported; only 'text' is.")
