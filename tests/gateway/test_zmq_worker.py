"""ZMQ workers, against an engine that speaks EngineCore's wire over real sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
import zmq.asyncio

from foreword.errors import ConfigError, ContextOverflow, WorkerError, WorkerUnavailable
from foreword.gateway.worker_url import parse_worker_url
from foreword.gateway.zmq_wire import pack_add, pack_sampling, read_logprobs, unpack_outputs
from foreword.gateway.zmq_worker import ZmqWorker
from foreword.generation import GenerateOutput, GenerateRequest, SamplingParams, TokenLogprobs, WorkerStatistics


class FakeEngineCore:
    """A headless engine: shakes hands, takes requests, answers what ``steps`` says."""

    def __init__(self, handshake: str) -> None:
        context = zmq.asyncio.Context.instance()
        self.handshake, self.input, self.output = (context.socket(kind) for kind in (zmq.DEALER, zmq.DEALER, zmq.PUSH))
        for socket in (self.handshake, self.input, self.output):
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.IDENTITY, (0).to_bytes(2, "little"))
        self.handshake.connect(handshake)
        self.messages: list[tuple[bytes, Any]] = []

    async def arrive(self) -> None:
        """HELLO, addresses, READY and the first message on the input socket."""
        await self.handshake.send(msgspec.msgpack.encode({"status": "HELLO", "local": False, "headless": True}))
        addresses = msgspec.msgpack.decode(await self.handshake.recv())["addresses"]
        self.input.connect(addresses["inputs"][0])
        self.output.connect(addresses["outputs"][0])
        ready = {"max_model_len": 64, "num_gpu_blocks": 10, "block_size": 16, "vllm_version": "0.32.0"}
        await self.input.send(msgspec.msgpack.encode(ready))

    async def take(self) -> tuple[bytes, Any]:
        """The next message of the front."""
        async with asyncio.timeout(5):
            kind, payload = await self.input.recv_multipart()
        return kind, msgspec.msgpack.decode(payload)

    async def step(self, *outputs: list[Any], running: int = 1) -> None:
        """One step's outputs."""
        statistics = {"num_running_reqs": running, "num_waiting_reqs": 2, "kv_cache_usage": 0.5}
        await self.output.send(msgspec.msgpack.encode([0, list(outputs), statistics]))

    def close(self) -> None:
        """Die without a word."""
        for socket in (self.handshake, self.input, self.output):
            socket.close(0)


def output(request_id: str, ids: list[int], reason: int | None = None, stop: Any = None, cached: int = 0) -> list[Any]:
    """One request's part of a step."""
    prefill = {"num_prompt_tokens": 3, "num_computed_tokens": 3 - cached, "num_cached_tokens": cached}
    return [request_id, ids, None, None, None, reason, stop, None, None, None, None, prefill]


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[ZmqWorker]:
    """A bound worker that nobody has come to yet."""
    tmp_path.chmod(0o700)
    made = ZmqWorker(
        parse_worker_url(f"zmq+ipc://{tmp_path}/w?handshake=ipc://{tmp_path}/h"), eos_token_ids=(2, 7), model="m"
    )
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def engine(worker: ZmqWorker) -> AsyncIterator[FakeEngineCore]:
    """An engine that has arrived."""
    made = FakeEngineCore(worker.connection.handshake)
    await made.arrive()
    await worker.wait_ready(5)
    yield made
    made.close()


async def collect(worker: ZmqWorker, request: GenerateRequest) -> list[GenerateOutput]:
    """All outputs of one request."""
    return [step async for step in worker.generate(request)]


async def test_a_request_and_its_answer(worker: ZmqWorker, engine: FakeEngineCore) -> None:
    """Ids go as the engine wants them; deltas, the stop token and cached tokens come back."""
    request = GenerateRequest("r1", [5, 6, 8], SamplingParams(max_tokens=4, temperature=0.0), cache_salt="tenant")
    task = asyncio.create_task(collect(worker, request))
    kind, message = await engine.take()
    assert (kind, message[0], message[1], message[7]) == (b"\x00", "r1", [5, 6, 8], "tenant")
    assert message[3]["max_tokens"] == 4
    assert message[3]["_eos_token_id"] == 2
    await engine.step(output("r1", [11], cached=2))
    await engine.step(output("r1", [12, 2], reason=0, cached=2))
    assert await task == [
        GenerateOutput("r1", (11,), num_prompt_tokens=3, num_cached_tokens=2),
        GenerateOutput("r1", (12, 2), "stop", 2, 3, 2),
    ]
    assert worker.statistics() == WorkerStatistics(1, 2, 0.5)


async def test_the_engine_says_what_it_is(worker: ZmqWorker, engine: FakeEngineCore) -> None:
    """Context length and block size come with its first message."""
    assert (worker.max_model_len, worker.block_size, await worker.check_health()) == (64, 16, True)


async def test_closing_early_aborts(worker: ZmqWorker, engine: FakeEngineCore) -> None:
    """The engine is told, once."""
    stream = worker.generate(GenerateRequest("r1", [1]))
    reading = asyncio.ensure_future(anext(stream))
    await engine.take()
    await engine.step(output("r1", [4]))
    await reading
    await stream.aclose()
    assert await engine.take() == (b"\x01", ["r1"])
    await engine.step(output("r1", [5]))  # on its way when the abort arrived: nobody's any more


async def test_a_killed_engine_ends_its_requests(worker: ZmqWorker, engine: FakeEngineCore) -> None:
    """It says nothing: its connection closes. The next engine takes its place."""
    task = asyncio.create_task(collect(worker, GenerateRequest("r1", [1])))
    await engine.take()
    engine.close()
    async with asyncio.timeout(5):
        with pytest.raises(WorkerUnavailable, match="died"):
            await task
    assert not await worker.check_health()
    successor = FakeEngineCore(worker.connection.handshake)
    await successor.arrive()
    await worker.wait_ready(5)
    task = asyncio.create_task(collect(worker, GenerateRequest("r2", [1])))
    assert (await successor.take())[1][0] == "r2"
    await successor.step(output("r2", [9], reason=1))
    assert (await task)[-1].finish_reason == "length"
    successor.close()


async def test_an_engine_that_announces_its_death(worker: ZmqWorker, engine: FakeEngineCore) -> None:
    """The last message some deaths leave."""
    task = asyncio.create_task(collect(worker, GenerateRequest("r1", [1])))
    await engine.take()
    await engine.output.send(b"ENGINE_CORE_DEAD")
    with pytest.raises(WorkerUnavailable, match="died"):
        await task


async def test_an_engine_that_restarts_before_it_was_missed(worker: ZmqWorker, engine: FakeEngineCore) -> None:
    """A second HELLO ends what the first life still owed."""
    task = asyncio.create_task(collect(worker, GenerateRequest("r1", [1])))
    await engine.take()
    successor = FakeEngineCore(worker.connection.handshake)
    successor.handshake.setsockopt(zmq.IDENTITY, b"x")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.5):
            await successor.arrive()
    await engine.handshake.send(msgspec.msgpack.encode({"status": "HELLO"}))
    with pytest.raises(WorkerUnavailable, match="restarted"):
        await task
    successor.close()


async def test_a_failed_request(worker: ZmqWorker, engine: FakeEngineCore) -> None:
    """The engine reports an error for one request; it alone ends."""
    task = asyncio.create_task(collect(worker, GenerateRequest("r1", [1])))
    await engine.take()
    await engine.step(output("r1", [], reason=3))
    with pytest.raises(WorkerError, match="failed request r1"):
        await task


async def test_noise_is_survived(worker: ZmqWorker, engine: FakeEngineCore) -> None:
    """Messages in no known form are logged and passed over."""
    await engine.handshake.send(b"\xc1")
    await engine.output.send(b"\xc1")
    await engine.output.send(msgspec.msgpack.encode(7))
    task = asyncio.create_task(collect(worker, GenerateRequest("r1", [1])))
    await engine.take()
    await engine.step(output("unknown", [1]), output("r1", [3], reason=1))
    assert (await task)[0].token_ids == (3,)


async def test_a_prompt_that_is_too_long_is_refused_here(worker: ZmqWorker, engine: FakeEngineCore) -> None:
    """The engine would never answer it."""
    with pytest.raises(ContextOverflow) as caught:
        await collect(worker, GenerateRequest("r1", list(range(64))))
    assert caught.value.evidence == {"prompt_tokens": 64, "max_model_len": 64}


async def test_no_engine_yet(worker: ZmqWorker) -> None:
    """Requests are turned away until one comes."""
    with pytest.raises(WorkerUnavailable, match="has no engine yet"):
        await collect(worker, GenerateRequest("r1", [1]))
    with pytest.raises(WorkerUnavailable, match="has no engine yet"):
        await worker.wait_ready(0.01)


async def test_a_folder_open_to_others_is_refused(tmp_path: Path) -> None:
    """Whoever can connect to the sockets can read every prompt."""
    tmp_path.chmod(0o755)
    worker = ZmqWorker(parse_worker_url(f"ipc://{tmp_path}/w"))
    with pytest.raises(ConfigError, match="open to others"):
        await worker.start()
    with pytest.raises(ConfigError, match="does not exist"):
        await ZmqWorker(parse_worker_url(f"ipc://{tmp_path}/none/w")).start()


def test_sampling_parameters_are_complete_and_bare() -> None:
    """Defaults are left out; stop tokens are worked out here, as the engine's own front does."""
    assert pack_sampling(SamplingParams(), ()) == {
        "output_kind": 1, "skip_clone": True, "detokenize": False, "_all_stop_token_ids": [],
    }  # fmt: skip
    packed = pack_sampling(
        SamplingParams(
            max_tokens=9, temperature=0.0, top_k=5, stop_token_ids=(4,), logit_bias={1: 2.0}, logprobs=3, seed=0
        ),
        (2, 7),
    )
    assert (packed["temperature"], packed["seed"], packed["logprobs"], packed["logit_bias"]) == (0.0, 0, 3, {1: 2.0})
    assert (packed["_eos_token_id"], packed["stop_token_ids"], packed["_all_stop_token_ids"]) == (2, [4, 7], [2, 4, 7])
    ignoring = pack_sampling(SamplingParams(ignore_eos=True, stop_token_ids=(4,)), (2, 7))
    assert ("_eos_token_id" in ignoring, ignoring["stop_token_ids"]) == (False, [4])


def test_without_a_budget_the_answer_may_fill_the_context() -> None:
    """The engine's own default would be 16 tokens."""
    assert msgspec.msgpack.decode(pack_add(GenerateRequest("r", [1, 2, 3]), (), 100))[3]["max_tokens"] == 97


def test_logprobs_come_as_arrays_in_frames_or_in_line() -> None:
    """Large arrays are frames of their own, small ones stand in the message."""
    ids, values = np.array([[4, 4, 9]], dtype=np.int32), np.array([[-0.5, -0.5, -1.0]], dtype=np.float32)
    raw = [["<i4", [1, 3], 1], ["<f4", [1, 3], values.tobytes()], None]
    assert read_logprobs(raw, [b"", ids.tobytes()]) == (TokenLogprobs(4, -0.5, ((4, -0.5), (9, -1.0))),)


@pytest.mark.parametrize("frame", [b"", b"\xc1", msgspec.msgpack.encode(5), msgspec.msgpack.encode([0, 5])])
def test_unreadable_outputs_are_worker_errors(frame: bytes) -> None:
    """One kind of error, whatever came."""
    with pytest.raises(WorkerError, match="no form known here"):
        unpack_outputs([frame])
