"""The gRPC protocols of vLLM and SGLang: the messages of a request, and how answers read (package smg-grpc-proto).

Traps of the wire, each heeded here: proto3's zero is not a default, so every sampling field is sent; the last message of a
stream carries the last delta only, and may be empty; SGLang takes limits and log probabilities under other names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from smg_grpc_proto.generated import (
    sglang_scheduler_pb2,
    sglang_scheduler_pb2_grpc,
    vllm_engine_pb2,
    vllm_engine_pb2_grpc,
)

from foreword.errors import RequestError, WorkerError
from foreword.generation import FinishReason, GenerateOutput, GenerateRequest, SamplingParams, TokenLogprobs


class VllmDialect:
    """vllm.grpc.engine.VllmEngine."""

    pb = vllm_engine_pb2

    def __init__(self, channel: Any) -> None:
        self.stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)

    def request(self, request: GenerateRequest, dp_rank: int | None = None) -> Any:
        """The request's message, for one data-parallel rank or any."""
        return vllm_engine_pb2.GenerateRequest(
            request_id=request.request_id,
            tokenized=vllm_engine_pb2.TokenizedInput(input_ids=request.token_ids),
            sampling_params=self._sampling(request.sampling),
            stream=True,
            data_parallel_rank=dp_rank,
        )

    def abort(self, request_id: str) -> Any:
        """The message that aborts it."""
        return vllm_engine_pb2.AbortRequest(request_ids=[request_id])

    def _sampling(self, params: SamplingParams) -> Any:
        return vllm_engine_pb2.SamplingParams(
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
            frequency_penalty=params.frequency_penalty,
            presence_penalty=params.presence_penalty,
            repetition_penalty=params.repetition_penalty,
            max_tokens=params.max_tokens,
            min_tokens=params.min_tokens,
            stop_token_ids=params.stop_token_ids,
            skip_special_tokens=False,
            ignore_eos=params.ignore_eos,
            n=1,
            logprobs=params.logprobs,
            seed=params.seed,
            logit_bias=dict(params.logit_bias),
        )


class SglangDialect:
    """sglang.grpc.scheduler.SglangScheduler."""

    pb = sglang_scheduler_pb2

    def __init__(self, channel: Any) -> None:
        self.stub = sglang_scheduler_pb2_grpc.SglangSchedulerStub(channel)

    def request(self, request: GenerateRequest, dp_rank: int | None = None) -> Any:
        """The request's message, for one data-parallel rank or any; raises RequestError for a seed, which this protocol cannot carry."""
        if request.sampling.seed is not None:
            raise RequestError("SGLang workers take no seed over gRPC.", hint="Leave 'seed' out.")
        return sglang_scheduler_pb2.GenerateRequest(
            request_id=request.request_id,
            tokenized=sglang_scheduler_pb2.TokenizedInput(input_ids=request.token_ids),
            sampling_params=self._sampling(request.sampling),
            return_logprob=request.sampling.logprobs is not None,
            logprob_start_len=-1,
            top_logprobs_num=request.sampling.logprobs or 0,
            stream=True,
            data_parallel_rank=dp_rank,
        )

    def abort(self, request_id: str) -> Any:
        """The message that aborts it."""
        return sglang_scheduler_pb2.AbortRequest(request_id=request_id, reason="client disconnected")

    def _sampling(self, params: SamplingParams) -> Any:
        return sglang_scheduler_pb2.SamplingParams(
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k or -1,
            min_p=params.min_p,
            frequency_penalty=params.frequency_penalty,
            presence_penalty=params.presence_penalty,
            repetition_penalty=params.repetition_penalty,
            max_new_tokens=params.max_tokens,
            min_new_tokens=params.min_tokens,
            stop_token_ids=params.stop_token_ids,
            skip_special_tokens=False,
            ignore_eos=params.ignore_eos,
            n=1,
            logit_bias={str(token): bias for token, bias in params.logit_bias.items()},
        )


FINISH_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


def read_response(request: GenerateRequest, message: Any, sent: int) -> GenerateOutput:
    """One message of a stream, of either engine, after ``sent`` tokens; raises WorkerError when it reports an error.

    A last message that repeats the whole answer is told by its own token count.
    """
    if message.WhichOneof("response") == "chunk":
        chunk = message.chunk
        return GenerateOutput(
            request.request_id,
            tuple(chunk.token_ids),
            num_prompt_tokens=chunk.prompt_tokens,
            num_cached_tokens=chunk.cached_tokens,
            logprobs=read_logprobs(request, chunk),
        )
    last = message.complete
    reason = FINISH_REASONS.get(last.finish_reason)
    if reason is None:
        raise WorkerError(f"The worker ended a request with {last.finish_reason!r}.")
    skip = sent if len(last.output_ids) == last.completion_tokens else 0
    logprobs = read_logprobs(request, last)
    return GenerateOutput(
        request.request_id,
        tuple(last.output_ids[skip:]),
        finish_reason=reason,
        stop_token_id=last.output_ids[-1] if reason == "stop" and last.output_ids else None,
        num_prompt_tokens=last.prompt_tokens,
        num_cached_tokens=last.cached_tokens,
        logprobs=logprobs[skip:] if logprobs and len(logprobs) == len(last.output_ids) else logprobs,
    )


def join(held: GenerateOutput | None, output: GenerateOutput) -> GenerateOutput:
    """A delta that may have ended the answer, with the message after it, which says whether it did.

    The token that ends an answer may come in a delta of its own, before a last message without tokens.
    """
    if held is None:
        return output
    token_ids = held.token_ids + output.token_ids
    return replace(
        output,
        token_ids=token_ids,
        stop_token_id=token_ids[-1] if output.finish_reason == "stop" else None,
        logprobs=None if held.logprobs is None else held.logprobs + (output.logprobs or ()),
    )


def read_logprobs(request: GenerateRequest, message: Any) -> tuple[TokenLogprobs, ...] | None:
    """The log probabilities beside a delta, if they were asked for."""
    if request.sampling.logprobs is None or not message.HasField("output_logprobs"):
        return None
    found = message.output_logprobs
    tops: Sequence[Any] = found.top_logprobs or [None] * len(found.token_ids)
    return tuple(
        TokenLogprobs(token, logprob, tuple(zip(top.token_ids, top.values, strict=True)) if top else ())
        for token, logprob, top in zip(found.token_ids, found.token_logprobs, tops, strict=True)
    )
