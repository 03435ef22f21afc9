"""The messages of a headless vLLM engine (EngineCore, vLLM 0.32), packed and unpacked without vLLM.

Arrays are positional; only the fields used here are named. numpy arrays inside outputs are [dtype, shape, data], where data is
the number of a further frame or, when small, an extension of type 3.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from foreword.errors import WorkerError
from foreword.generation import FinishReason, GenerateOutput, GenerateRequest, SamplingParams, TokenLogprobs

ADD, ABORT, UTILITY = b"\x00", b"\x01", b"\x03"
ENGINE_CORE_DEAD = b"ENGINE_CORE_DEAD"
RAW_VIEW = 3
OUTPUT_DELTA = 1  # RequestOutputKind.DELTA
FINISH_REASONS: tuple[FinishReason | None, ...] = ("stop", "length", "abort", None)  # 3 is "error"


def pack_add(request: GenerateRequest, eos_token_ids: Sequence[int], max_model_len: int) -> bytes:
    """The ADD message of a request. Without a budget the answer may fill the context, which the front has to say."""
    sampling = pack_sampling(request.sampling, eos_token_ids)
    sampling.setdefault("max_tokens", max_model_len - len(request.token_ids))
    return msgspec.msgpack.encode(
        [
            request.request_id,
            list(request.token_ids),
            None,  # mm_features
            sampling,
            None,  # pooling_params
            time.time(),
            None,  # lora_request
            request.cache_salt,
            None,  # data_parallel_rank
        ]
    )


def pack_sampling(params: SamplingParams, eos_token_ids: Sequence[int]) -> dict[str, Any]:
    """Sampling parameters, defaults left out, and the stop tokens as the front works them out for the engine.

    The first end-of-sequence token is the engine's own; further ones are stop tokens like any other.
    """
    given = {
        "max_tokens": params.max_tokens,
        "min_tokens": params.min_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "seed": params.seed,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "repetition_penalty": params.repetition_penalty,
        "logit_bias": dict(params.logit_bias) or None,
        "logprobs": params.logprobs,
    }
    further = () if params.ignore_eos else tuple(eos_token_ids[1:])
    stop = sorted({*params.stop_token_ids, *further})
    packed: dict[str, Any] = {"output_kind": OUTPUT_DELTA, "skip_clone": True, "detokenize": False}
    packed |= {name: value for name, value in given.items() if value is not None and value != _DEFAULTS.get(name)}
    if params.ignore_eos:
        packed["ignore_eos"] = True
    if stop:
        packed["stop_token_ids"] = stop
    if eos_token_ids and not params.ignore_eos:
        packed["_eos_token_id"] = eos_token_ids[0]
    packed["_all_stop_token_ids"] = sorted({*params.stop_token_ids, *eos_token_ids})
    return packed


_DEFAULTS: dict[str, Any] = {
    "min_tokens": 0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "temperature": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """The engine's own counts after a step."""

    running: int
    waiting: int
    kv_usage: float


@dataclass(frozen=True, slots=True)
class EngineOutputs:
    """One message of the engine: what a step gave each request."""

    outputs: tuple[Any, ...]
    statistics: SchedulerStatistics | None


def unpack_outputs(frames: Sequence[bytes]) -> EngineOutputs:
    """Decode one message of the output socket; raises WorkerError when it is in no form known here."""
    try:
        message = msgspec.msgpack.Decoder(ext_hook=_read_extension).decode(frames[0])
        outputs = tuple(message[1]) if len(message) > 1 and message[1] else ()
        return EngineOutputs(outputs, _read_statistics(message[2] if len(message) > 2 else None))
    except (msgspec.DecodeError, TypeError, IndexError, KeyError, ValueError) as error:
        raise WorkerError(f"The engine sent a message in no form known here: {error}.") from error


def _read_extension(code: int, data: memoryview) -> Any:
    return bytes(data) if code == RAW_VIEW else None


def _read_statistics(raw: Any) -> SchedulerStatistics | None:
    if not isinstance(raw, dict):
        return None
    running, waiting = raw.get("num_running_reqs", 0), raw.get("num_waiting_reqs", 0)
    return SchedulerStatistics(running, waiting, raw.get("kv_cache_usage", 0.0))


def read_output(
    raw: Sequence[Any], frames: Sequence[bytes], num_prompt_tokens: int, num_cached_tokens: int
) -> GenerateOutput:
    """One request's part of a step; raises WorkerError when the engine failed the request.

    ``num_cached_tokens`` is what an earlier step reported: the engine does so once.
    """
    fields = [*raw, *[None] * (12 - len(raw))]
    request_id, token_ids, logprobs, reason, stop_reason, prefill = (fields[i] for i in (0, 1, 2, 5, 6, 11))
    finish = None if reason is None else FINISH_REASONS[reason]
    if reason is not None and finish is None:
        raise WorkerError(f"The engine failed request {request_id}.")
    stopped = finish == "stop" and token_ids
    return GenerateOutput(
        request_id,
        tuple(token_ids),
        finish_reason=finish,
        stop_token_id=(stop_reason if isinstance(stop_reason, int) else token_ids[-1]) if stopped else None,
        num_prompt_tokens=num_prompt_tokens,
        num_cached_tokens=_cached_tokens(prefill) or num_cached_tokens,
        logprobs=read_logprobs(logprobs, frames) if logprobs is not None else None,
    )


def _cached_tokens(prefill: Any) -> int:
    """Of 0.32's prefill statistics, or the plain number of older releases in the same place."""
    return int((prefill.get("num_cached_tokens") if isinstance(prefill, dict) else prefill) or 0)


def read_logprobs(raw: Sequence[Any], frames: Sequence[bytes]) -> tuple[TokenLogprobs, ...]:
    """Rows of [sampled token, likeliest tokens...] with their log probabilities."""
    tokens, values = read_array(raw[0], frames), read_array(raw[1], frames)
    return tuple(
        TokenLogprobs(int(ids[0]), float(row[0]), tuple(zip(ids[1:].tolist(), row[1:].tolist(), strict=True)))
        for ids, row in zip(tokens, values, strict=True)
    )


def read_array(raw: Any, frames: Sequence[bytes]) -> np.ndarray[Any, Any]:
    """A numpy array as the engine sends it."""
    if not (isinstance(raw, list) and len(raw) == 3 and isinstance(raw[0], str)):
        return np.asarray(raw)
    dtype, shape, data = raw
    buffer = bytes(frames[data]) if isinstance(data, int) else data
    return np.frombuffer(buffer, dtype=np.dtype(dtype)).reshape(shape)
