"""gRPC workers, against servers that speak vLLM's and SGLang's protocols on real sockets."""

import asyncio
import hashlib
import io
import zipfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from smg_grpc_proto.generated import (
    common_pb2,
    sglang_scheduler_pb2,
    sglang_scheduler_pb2_grpc,
    vllm_engine_pb2,
    vllm_engine_pb2_grpc,
)

from foreword.errors import ContextOverflow, RequestError, WorkerError, WorkerUnavailable
from foreword.gateway.grpc_worker import GrpcWorker, unpack_tokenizer
from foreword.gateway.prefix_view import PrefixView
from foreword.gateway.worker_url import WorkerConnection
from foreword.generation import GenerateOutput, GenerateRequest, SamplingParams, TokenLogprobs, WorkerStatistics


class Engine:
    """Answers as ``messages`` says, and notes what it is asked. The servicers of both engines share it."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.error: tuple[Any, str] | None = None
        self.seen: list[Any] = []
        self.keys: list[Any] = []
        self.aborted: list[str] = []
        self.hang = False
        self.batches: list[Any] = []
        self.tokenizer = b""
        self.subscriptions: list[int] = []

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802 - the protocol's name
        """The messages, then an error or silence if told."""
        self.seen.append(request)
        self.keys.append(dict(context.invocation_metadata()).get("authorization"))
        for message in self.messages:
            yield message
        if self.error is not None:
            await context.abort(*self.error)
        if self.hang:
            await asyncio.sleep(60)

    async def Abort(self, request: Any, _: Any) -> Any:  # noqa: N802
        """Noted."""
        self.aborted += request.request_ids if hasattr(request, "request_ids") else [request.request_id]
        return self.pb.AbortResponse()

    async def HealthCheck(self, *_: Any) -> Any:  # noqa: N802
        """Well."""
        return self.pb.HealthCheckResponse(healthy=True)

    async def GetModelInfo(self, *_: Any) -> Any:  # noqa: N802
        """A small model."""
        return self.pb.GetModelInfoResponse(served_model_name="m", max_context_length=4096, eos_token_ids=[2])

    async def GetServerInfo(self, *_: Any) -> Any:  # noqa: N802
        """Block size, where the protocol has it."""
        return self.pb.GetServerInfoResponse(**({"block_size": 32} if self.pb is vllm_engine_pb2 else {}))

    async def GetLoads(self, *_: Any) -> Any:  # noqa: N802
        """Two ranks."""
        load = self.pb.SchedulerLoad
        return self.pb.GetLoadsResponse(
            loads=[load(num_running_reqs=1, num_waiting_reqs=2, token_usage=0.25), load(num_running_reqs=3, dp_rank=1)]
        )

    async def GetTokenizer(self, *_: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Two chunks, the digest with the last."""
        half = len(self.tokenizer) // 2
        yield common_pb2.GetTokenizerChunk(data=self.tokenizer[:half])
        digest = hashlib.sha256(self.tokenizer).hexdigest()
        yield common_pb2.GetTokenizerChunk(data=self.tokenizer[half:], sha256=digest)

    async def SubscribeKvEvents(self, request: Any, _: Any) -> AsyncIterator[Any]:  # noqa: N802
        """The batches there are."""
        self.subscriptions.append(request.start_sequence_number)
        for batch in self.batches:
            yield batch
        await asyncio.sleep(60)

    pb: Any


class VllmEngine(Engine, vllm_engine_pb2_grpc.VllmEngineServicer):  # type: ignore[misc]
    """vLLM's service."""

    pb = vllm_engine_pb2


class SglangEngine(Engine, sglang_scheduler_pb2_grpc.SglangSchedulerServicer):  # type: ignore[misc]
    """SGLang's service."""

    pb = sglang_scheduler_pb2


async def serve(engine: Engine) -> tuple[Any, int]:
    """A running server and its port."""
    server = grpc.aio.server()
    if isinstance(engine, VllmEngine):
        vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(engine, server)
    else:
        sglang_scheduler_pb2_grpc.add_SglangSchedulerServicer_to_server(engine, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


@pytest.fixture(params=[VllmEngine, SglangEngine])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Engine, GrpcWorker]]:
    """An engine of each kind with a started worker."""
    engine: Engine = request.param()
    server, port = await serve(engine)
    worker = GrpcWorker(WorkerConnection("w", "grpc", f"127.0.0.1:{port}", api_key="k"))
    await worker.start()
    yield engine, worker
    await worker.stop()
    await server.stop(None)


async def collect(worker: GrpcWorker, request: GenerateRequest) -> list[GenerateOutput]:
    """All outputs of one request."""
    return [output async for output in worker.generate(request)]


def chunk(engine: Engine, *ids: int, cached: int = 0) -> Any:
    """A delta."""
    return engine.pb.GenerateResponse(
        chunk=engine.pb.GenerateStreamChunk(token_ids=ids, prompt_tokens=3, cached_tokens=cached)
    )


def complete(engine: Engine, *ids: int, reason: str = "stop", total: int = 9, cached: int = 0) -> Any:
    """The last message."""
    return engine.pb.GenerateResponse(
        complete=engine.pb.GenerateComplete(
            output_ids=ids, finish_reason=reason, prompt_tokens=3, completion_tokens=total, cached_tokens=cached
        )
    )


async def test_it_learns_what_the_engine_serves(pair: tuple[Engine, GrpcWorker]) -> None:
    """Which protocol, model, context length and end tokens are asked at the start."""
    engine, worker = pair
    assert (worker.model, worker.max_model_len, worker.eos_token_ids) == ("m", 4096, (2,))
    assert worker.block_size == (32 if isinstance(engine, VllmEngine) else 0)


async def test_deltas_and_the_last_delta(pair: tuple[Engine, GrpcWorker]) -> None:
    """The last message carries the last delta; the token that stopped is named."""
    engine, worker = pair
    engine.messages = [chunk(engine, 5, 6, cached=2), complete(engine, 8, 2, total=4, cached=2)]
    assert await collect(worker, GenerateRequest("r", [1, 3, 4])) == [
        GenerateOutput("r", (5, 6), num_prompt_tokens=3, num_cached_tokens=2),
        GenerateOutput("r", (8, 2), "stop", 2, 3, 2),
    ]
    assert (engine.aborted, engine.keys) == ([], ["Bearer k"])


async def test_an_end_that_comes_before_the_last_message(pair: tuple[Engine, GrpcWorker]) -> None:
    """VLLM may send the end-of-sequence token as a delta and an empty last message: it is one step, and no text."""
    engine, worker = pair
    engine.messages = [chunk(engine, 5), chunk(engine, 6, 2), complete(engine, total=3)]
    outputs = await collect(worker, GenerateRequest("r", [1]))
    assert [(output.token_ids, output.stop_token_id) for output in outputs] == [((5,), None), ((6, 2), 2)]


async def test_an_end_that_was_none(pair: tuple[Engine, GrpcWorker]) -> None:
    """With ignore_eos the answer goes on behind the token, which is then like any other."""
    engine, worker = pair
    engine.messages = [chunk(engine, 5, 2), chunk(engine, 6), complete(engine, reason="length", total=3)]
    outputs = await collect(worker, GenerateRequest("r", [1], SamplingParams(ignore_eos=True)))
    assert [output.token_ids for output in outputs] == [(5, 2, 6), ()]


async def test_a_last_message_that_repeats_everything(pair: tuple[Engine, GrpcWorker]) -> None:
    """Tokens already sent are not sent twice."""
    engine, worker = pair
    engine.messages = [chunk(engine, 5, 6), complete(engine, 5, 6, 8, reason="length", total=3)]
    outputs = await collect(worker, GenerateRequest("r", [1]))
    assert [output.token_ids for output in outputs] == [(5, 6), (8,)]
    assert (outputs[-1].finish_reason, outputs[-1].stop_token_id) == ("length", None)


async def test_every_sampling_field_is_sent(pair: tuple[Engine, GrpcWorker]) -> None:
    """proto3's zero is not the default of top_p or repetition_penalty."""
    engine, worker = pair
    engine.messages = [complete(engine, 5, total=1)]
    sampling = SamplingParams(max_tokens=7, min_tokens=1, temperature=0.0, stop_token_ids=(4,), logit_bias={9: -1.0})
    await collect(worker, GenerateRequest("r", [1, 70_000], sampling))
    (seen,) = engine.seen
    sent = seen.sampling_params
    assert list(seen.tokenized.input_ids) == [1, 70_000]
    assert (sent.temperature, sent.top_p, sent.repetition_penalty, list(sent.stop_token_ids)) == (0.0, 1.0, 1.0, [4])
    if isinstance(engine, VllmEngine):
        assert (sent.max_tokens, sent.min_tokens, sent.top_k, sent.n, dict(sent.logit_bias)) == (7, 1, 0, 1, {9: -1.0})
    else:
        assert (sent.max_new_tokens, sent.min_new_tokens, sent.top_k, sent.n, dict(sent.logit_bias)) == (
            7,
            1,
            -1,
            1,
            {"9": -1.0},
        )


async def test_logprobs(pair: tuple[Engine, GrpcWorker]) -> None:
    """Each token with its likeliest rivals."""
    engine, worker = pair
    message = complete(engine, 5, total=1)
    found = message.complete.output_logprobs
    found.token_ids.append(5)
    found.token_logprobs.append(-0.5)
    found.top_logprobs.add(values=[-0.5, -1.0], token_ids=[5, 7])
    engine.messages = [message]
    (output,) = await collect(worker, GenerateRequest("r", [1], SamplingParams(logprobs=2)))
    assert output.logprobs == (TokenLogprobs(5, -0.5, ((5, -0.5), (7, -1.0))),)


async def test_closing_early_aborts(pair: tuple[Engine, GrpcWorker]) -> None:
    """The call is cancelled and the engine told, so that it frees its blocks."""
    engine, worker = pair
    engine.messages, engine.hang = [chunk(engine, 5)], True
    stream = worker.generate(GenerateRequest("r", [1]))
    await anext(stream)
    await stream.aclose()
    async with asyncio.timeout(5):
        while engine.aborted != ["r"]:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    "code, details, kind",
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "temperature is negative", RequestError),
        (grpc.StatusCode.INVALID_ARGUMENT, "prompt is longer than the maximum model length of 9", ContextOverflow),
        (grpc.StatusCode.UNAVAILABLE, "shutting down", WorkerUnavailable),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "queue is full", WorkerUnavailable),
        (grpc.StatusCode.INTERNAL, "engine died", WorkerError),
    ],
)
async def test_statuses_are_typed_errors(
    pair: tuple[Engine, GrpcWorker], code: Any, details: str, kind: type[Exception]
) -> None:
    """The engine's own words come through."""
    engine, worker = pair
    engine.error = (code, details)
    with pytest.raises(kind, match=details) as caught:
        await collect(worker, GenerateRequest("r", [1]))
    assert type(caught.value) is kind


async def test_a_stream_that_just_ends_is_an_error(pair: tuple[Engine, GrpcWorker]) -> None:
    """An answer without a last message is not an answer."""
    engine, worker = pair
    engine.messages = [chunk(engine, 5)]
    with pytest.raises(WorkerError, match="before the answer was complete"):
        await collect(worker, GenerateRequest("r", [1]))


async def test_an_unknown_finish_reason_is_an_error(pair: tuple[Engine, GrpcWorker]) -> None:
    """'error' is how engines report a failed request."""
    engine, worker = pair
    engine.messages = [complete(engine, reason="error")]
    with pytest.raises(WorkerError, match="'error'"):
        await collect(worker, GenerateRequest("r", [1]))


async def test_a_salt_is_refused(pair: tuple[Engine, GrpcWorker]) -> None:
    """The protocol cannot carry it, and tenants must not be mixed."""
    engine, worker = pair
    with pytest.raises(RequestError, match="cache_salt"):
        await collect(worker, GenerateRequest("r", [1], cache_salt="tenant"))
    assert engine.seen == []


async def test_health_asks_for_the_load(pair: tuple[Engine, GrpcWorker]) -> None:
    """Summed over ranks."""
    _, worker = pair
    assert await worker.check_health()
    assert worker.statistics() == WorkerStatistics(4, 2, 0.25)


async def test_the_tokenizer_is_fetched_and_checked(pair: tuple[Engine, GrpcWorker], tmp_path: Path) -> None:
    """A zip in chunks, its digest on the last."""
    engine, worker = pair
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("tokenizer.json", "{}")
        archive.writestr("../../tokenizer_config.json", "[]")
    engine.tokenizer = data.getvalue()
    await worker.fetch_tokenizer(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    with pytest.raises(WorkerError, match="not a readable zip"):
        unpack_tokenizer(b"no zip", tmp_path)


async def test_kv_events_reach_the_index(pair: tuple[Engine, GrpcWorker]) -> None:
    """Signed hashes, blocks with their own tokens, heartbeats without events, a second subscription after a gap."""
    engine, worker = pair
    blocks = [
        common_pb2.KvBlock(block_hash=-5, token_ids=[1, 2], block_size=2),
        common_pb2.KvBlock(block_hash=6, token_ids=[3, 4], block_size=2),
    ]
    stored = common_pb2.KvCacheEvent(stored=common_pb2.KvBlocksStored(blocks=blocks))
    removed = common_pb2.KvCacheEvent(removed=common_pb2.KvBlocksRemoved(block_hashes=[6]))
    load = common_pb2.EngineLoad(running_requests=8, load_only=True)
    engine.batches = [
        common_pb2.KvEventBatch(sequence_number=0, timestamp=1.0, events=[stored]),
        common_pb2.KvEventBatch(sequence_number=0, timestamp=1.0, load=load),
        common_pb2.KvEventBatch(sequence_number=1, timestamp=2.0, events=[removed]),
    ]
    view = PrefixView()
    view.add_worker("w")
    task = asyncio.create_task(worker.follow_kv_events(view.follow("w")))
    async with asyncio.timeout(5):
        while worker.statistics().running != 8 or view.index.match([1, 2, 3, 4, 5]) != {"w": 2}:
            await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert engine.subscriptions == [0]


async def test_a_rank_is_a_worker_of_its_own(pair: tuple[Engine, GrpcWorker]) -> None:
    """Requests are pinned to it; only its load and its events count, which it numbers by itself."""
    engine, worker = pair
    worker.connection = replace(worker.connection, dp_rank=1)
    engine.messages = [complete(engine, 5)]
    await collect(worker, GenerateRequest("r", [1]))
    assert engine.seen[-1].data_parallel_rank == 1
    assert await worker.check_health()
    assert worker.statistics().running == 3

    def batch(sequence: int, rank: int, token: int) -> Any:
        block = common_pb2.KvBlock(block_hash=token, token_ids=[token], block_size=1)
        event = common_pb2.KvCacheEvent(stored=common_pb2.KvBlocksStored(blocks=[block]))
        return common_pb2.KvEventBatch(sequence_number=sequence, timestamp=1.0, events=[event], dp_rank=rank)

    engine.batches = [batch(0, 1, 5), batch(0, 0, 6), batch(1, 0, 7), batch(1, 1, 8)]
    view = PrefixView()
    view.add_worker("w")
    task = asyncio.create_task(worker.follow_kv_events(view.follow("w")))
    async with asyncio.timeout(5):
        while view.index.match([8, 0]) != {"w": 1}:
            await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (view.index.match([5, 0]), view.index.match([6, 0]), view.index.match([7, 0])) == ({"w": 1}, {}, {})
    assert engine.subscriptions == [0]


async def test_nobody_there() -> None:
    """An address where nothing listens is unavailable."""
    worker = GrpcWorker(WorkerConnection("w", "grpc", "127.0.0.1:9"))
    with pytest.raises(WorkerUnavailable, match="cannot be reached"):
        await worker.start()
    assert not await worker.check_health()
    with pytest.raises(WorkerUnavailable, match="not connected"):
        await collect(worker, GenerateRequest("r", [1]))
    await worker.stop()


async def test_a_server_of_neither_kind() -> None:
    """It is told what is missing."""
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    worker = GrpcWorker(WorkerConnection("w", "grpc", f"127.0.0.1:{port}"))
    with pytest.raises(WorkerUnavailable, match="neither vLLM's nor SGLang's"):
        await worker.start()
    await worker.stop()
    await server.stop(None)
