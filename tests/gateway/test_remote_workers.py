"""A gateway in front of gRPC workers: its own tokenizer, template and stream, the worker's tokens."""

import asyncio
import hashlib
import io
import json
import threading
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc.aio
import httpx
import pytest
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2, vllm_engine_pb2_grpc

from foreword.testing.server import Running, serve

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "What is the capital of France?"}]


class Engine(vllm_engine_pb2_grpc.VllmEngineServicer):  # type: ignore[misc]
    """Says "Paris." a byte at a time; told to, it hangs after two bytes or dies there."""

    def __init__(self) -> None:
        self.prompts: list[list[int]] = []
        self.aborted: list[str] = []
        self.behaviour = ""
        self.url = ""

    async def GetModelInfo(self, *_: Any) -> Any:  # noqa: N802 - the protocol's name
        """A small model."""
        return vllm_engine_pb2.GetModelInfoResponse(served_model_name="remote", max_context_length=4096)

    async def GetServerInfo(self, *_: Any) -> Any:  # noqa: N802
        """Blocks of 16."""
        return vllm_engine_pb2.GetServerInfoResponse(block_size=16)

    async def HealthCheck(self, *_: Any) -> Any:  # noqa: N802
        """Well."""
        return vllm_engine_pb2.HealthCheckResponse(healthy=True)

    async def GetLoads(self, *_: Any) -> Any:  # noqa: N802
        """Idle."""
        return vllm_engine_pb2.GetLoadsResponse()

    async def GetTokenizer(self, *_: Any) -> AsyncIterator[Any]:  # noqa: N802
        """A zip; the tests' loader makes a byte tokenizer of anything."""
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w") as archive:
            archive.writestr("tokenizer.json", "{}")
        yield common_pb2.GetTokenizerChunk(data=data.getvalue(), sha256=hashlib.sha256(data.getvalue()).hexdigest())

    async def Abort(self, request: Any, _: Any) -> Any:  # noqa: N802
        """Noted."""
        self.aborted += request.request_ids
        return vllm_engine_pb2.AbortResponse()

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """The answer."""
        self.prompts.append(list(request.tokenized.input_ids))
        if self.behaviour == "refuse":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "shutting down")
        for number, byte in enumerate(b"Paris."):
            if number == 2 and self.behaviour == "hang":
                await asyncio.sleep(60)
            if number == 2 and self.behaviour == "die":
                await context.abort(grpc.StatusCode.INTERNAL, "engine died")
            chunk = vllm_engine_pb2.GenerateStreamChunk(token_ids=[byte], prompt_tokens=9, cached_tokens=4)
            yield vllm_engine_pb2.GenerateResponse(chunk=chunk)
        last = vllm_engine_pb2.GenerateComplete(
            output_ids=[], finish_reason="length", prompt_tokens=9, cached_tokens=4, completion_tokens=6
        )
        yield vllm_engine_pb2.GenerateResponse(complete=last)


@contextmanager
def running(*engines: Engine) -> Iterator[None]:
    """The engines, each on a port of its own, all on one thread."""
    started, stop, loop = threading.Event(), asyncio.Event(), asyncio.new_event_loop()

    async def run() -> None:
        servers = []
        for engine in engines:
            server = grpc.aio.server()
            vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(engine, server)
            engine.url = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            await server.start()
            servers.append(server)
        started.set()
        await stop.wait()
        for server in servers:
            await server.stop(None)

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert started.wait(5)
    yield
    loop.call_soon_threadsafe(stop.set)
    thread.join(10)
    loop.close()


@pytest.fixture
def engines() -> Iterator[tuple[Engine, Engine]]:
    """Two engines."""
    pair = (Engine(), Engine())
    with running(*pair):
        yield pair


@pytest.fixture
def gateway(engines: tuple[Engine, Engine]) -> Iterator[Running]:
    """A gateway in front of both, with no tokenizer for their model."""
    with serve([], worker_urls=tuple(engine.url for engine in engines), policy="round_robin") as made:
        yield made


def ask(gateway: Running, **fields: Any) -> httpx.Response:
    """One chat request."""
    return httpx.post(gateway.url + CHAT, json={"model": "remote", "messages": HELLO, **fields}, timeout=10)


def test_the_gateway_tokenizes_and_the_worker_answers(gateway: Running, engines: tuple[Engine, Engine]) -> None:
    """Whole and streamed say the same; equal ids are sent; cached tokens are reported."""
    whole = ask(gateway).json()
    assert whole["choices"][0]["message"]["content"] == "Paris."
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    events = [line for line in ask(gateway, stream=True).text.split("\n\n") if line.startswith("data: {")]
    deltas = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Paris."
    (one,), (two,) = engines[0].prompts, engines[1].prompts
    assert one == two
    assert b"capital of France" in bytes(token for token in one if token < 256)


def test_stop_strings_are_the_gateways(gateway: Running, engines: tuple[Engine, Engine]) -> None:
    """The stop string ends the answer here, and the request at the worker."""
    for engine in engines:
        engine.behaviour = "hang"
    answer = ask(gateway, stop="a").json()["choices"][0]
    assert (answer["message"]["content"], answer["finish_reason"]) == ("P", "stop")
    wait_until(lambda: len(engines[0].aborted + engines[1].aborted) == 1)


def test_a_client_that_leaves_aborts(gateway: Running, engines: tuple[Engine, Engine]) -> None:
    """The engine is told to free what the request held."""
    for engine in engines:
        engine.behaviour = "hang"
    body = {"model": "remote", "messages": HELLO, "stream": True}
    with httpx.stream("POST", gateway.url + CHAT, json=body) as response:
        next(response.iter_raw())
    wait_until(lambda: len(engines[0].aborted + engines[1].aborted) == 1)
    wait_until(lambda: all(w["requests"] == 0 for w in httpx.get(gateway.url + "/v1/workers").json()["workers"]))


def test_a_worker_that_refuses_is_passed_over(gateway: Running, engines: tuple[Engine, Engine]) -> None:
    """Its requests finish on the other, and it gets no more."""
    engines[0].behaviour = "refuse"
    assert [ask(gateway).json()["choices"][0]["message"]["content"] for _ in range(4)] == ["Paris."] * 4
    assert len(engines[0].prompts) == 1


def test_an_engine_that_dies_ends_the_stream_with_an_error(gateway: Running, engines: tuple[Engine, Engine]) -> None:
    """What was said stays said; the last event is the error."""
    for engine in engines:
        engine.behaviour = "die"
    events = ask(gateway, stream=True).text.strip().split("\n\n")
    assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == "worker_error"
    assert events[-1] == "data: [DONE]"


def wait_until(condition: Callable[[], bool]) -> None:
    """Return when a condition holds; the test fails after five seconds."""
    waiting = threading.Event()
    for _ in range(500):
        if condition():
            return
        waiting.wait(0.01)
    raise AssertionError("it did not come true")
