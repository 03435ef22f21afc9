"""HTTP workers, against a real server on a real socket."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from foreword.errors import WorkerError, WorkerUnavailable
from foreword.gateway.http_worker import HttpWorker, read_load
from foreword.gateway.usage_sniffer import TokenCounts, UsageSniffer
from foreword.gateway.worker_url import WorkerConnection, parse_worker_url
from foreword.generation import WorkerStatistics


class Server:
    """An OpenAI-compatible server that notes what it is asked."""

    def __init__(self) -> None:
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.status, self.headers, self.healthy = 200, {"X-Own": "1"}, True
        self.models_status = 200
        self.broken = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def models(self, _: web.Request) -> web.Response:
        """One model."""
        return web.json_response({"data": [{"id": "m1", "max_model_len": 4096}]}, status=self.models_status)

    async def health(self, _: web.Request) -> web.Response:
        """As told."""
        return web.Response(status=200 if self.healthy else 503)

    async def metrics(self, _: web.Request) -> web.Response:
        """VLLM's names."""
        return web.Response(
            text='vllm:num_requests_running{model_name="m1"} 3.0\nvllm:num_requests_waiting{engine="0"} 2.0\n'
        )

    async def echo(self, request: web.Request) -> web.StreamResponse:
        """The body back, in two chunks; or forever, or half."""
        self.requests.append(request)
        self.bodies.append(await request.read())
        if self.status != 200:
            return web.Response(status=self.status, headers=self.headers)
        response = web.StreamResponse(headers=self.headers)
        await response.prepare(request)
        await response.write(self.bodies[-1][:3])
        if b"forever" in self.bodies[-1]:
            try:
                while True:
                    await asyncio.sleep(0.01)
                    await response.write(b"more")
            except (asyncio.CancelledError, ConnectionError):
                self.cancelled.set()
                raise
        if b"break" in self.bodies[-1]:
            assert request.transport is not None
            request.transport.abort()
        await response.write(self.bodies[-1][3:])
        return response


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, str]]:
    """A running server and its URL."""
    made = Server()
    app = web.Application(handler_args={"handler_cancellation": True})
    app.router.add_get("/v1/models", made.models)
    app.router.add_get("/health", made.health)
    app.router.add_get("/metrics", made.metrics)
    app.router.add_route("*", "/v1/chat/completions", made.echo)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    yield made, f"http://127.0.0.1:{port}"
    await runner.cleanup()


@pytest.fixture
async def worker(server: tuple[Server, str]) -> AsyncIterator[HttpWorker]:
    """A started worker in front of it."""
    made = HttpWorker(parse_worker_url(server[1]))
    await made.start()
    yield made
    await made.stop()


async def read(response: Any) -> bytes:
    """The whole body."""
    body = b""
    while chunk := await response.read_chunk():
        body += chunk
    response.close()
    return body


async def test_it_learns_its_models(worker: HttpWorker) -> None:
    """Names and context length come from /v1/models."""
    assert (worker.models, worker.model, worker.max_model_len) == (("m1",), "m1", 4096)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_worker_that_wants_a_key_is_told_apart(server: tuple[Server, str], status: int) -> None:
    """The log says how to give one."""
    server[0].models_status = status
    worker = HttpWorker(parse_worker_url(server[1]))
    with pytest.raises(WorkerUnavailable, match=f"status {status}. Give its key with key-file=PATH"):
        await worker.start()
    await worker.stop()


async def test_bytes_pass_untouched(server: tuple[Server, str], worker: HttpWorker) -> None:
    """Body, query and the client's headers arrive as they were; hop-by-hop headers and the client's key do not."""
    headers = [(b"content-type", b"application/json"), (b"x-trace", b"7"), (b"Authorization", b"Bearer client"),
               (b"connection", b"close"), (b"host", b"gateway"), (b"accept-encoding", b"identity")]  # fmt: skip
    body = '{"messages": [{"content": "é\\u0000 \\ud83d"}]}'.encode()
    response = await worker.forward("POST", "/v1/chat/completions?a=b%20c", headers, body)
    assert (response.status, dict(response.headers)[b"X-Own"]) == (200, b"1")
    assert await read(response) == body
    (seen,) = server[0].requests
    assert (seen.raw_path, server[0].bodies) == ("/v1/chat/completions?a=b%20c", [body])
    assert (seen.headers["x-trace"], seen.headers["content-type"]) == ("7", "application/json")
    assert "Authorization" not in seen.headers
    assert seen.headers["host"] != "gateway"


async def test_the_workers_own_key_is_sent(server: tuple[Server, str]) -> None:
    """In place of the client's."""
    worker = HttpWorker(WorkerConnection("w", "http", server[1].removeprefix("http://"), api_key="worker-key"))
    await worker.start()
    await read(await worker.forward("POST", "/v1/chat/completions", [(b"authorization", b"Bearer client")], b"body"))
    await worker.stop()
    assert server[0].requests[0].headers["Authorization"] == "Bearer worker-key"


async def test_a_rank_is_named_to_the_server(server: tuple[Server, str]) -> None:
    """By vLLM's header, in place of any the client sent; without a rank the client's own passes."""
    for rank, seen in ((1, "1"), (None, "7")):
        worker = HttpWorker(WorkerConnection("w", "http", server[1].removeprefix("http://"), dp_rank=rank))
        await worker.start()
        await read(await worker.forward("POST", "/v1/chat/completions", [(b"x-Data-Parallel-Rank", b"7")], b"body"))
        await worker.stop()
        assert server[0].requests[-1].headers.getall("X-data-parallel-rank") == [seen]


async def test_closing_early_aborts_at_the_worker(server: tuple[Server, str], worker: HttpWorker) -> None:
    """The connection drops, which is how a server learns that the client left."""
    response = await worker.forward("POST", "/v1/chat/completions", [], b"run forever")
    assert await response.read_chunk()
    response.close()
    async with asyncio.timeout(5):
        await server[0].cancelled.wait()


async def test_a_broken_answer_is_a_worker_error(worker: HttpWorker) -> None:
    """What came before the break is passed on."""
    response = await worker.forward("POST", "/v1/chat/completions", [], b"break here")
    assert await response.read_chunk() == b"bre"
    with pytest.raises(WorkerError, match="broke off"):
        await read(response)
    response.close()


@pytest.mark.parametrize("status", [429, 503])
async def test_turned_away(server: tuple[Server, str], worker: HttpWorker, status: int) -> None:
    """The worker's own Retry-After is kept."""
    server[0].status, server[0].headers = status, {"Retry-After": "7"}
    with pytest.raises(WorkerUnavailable) as caught:
        await worker.forward("POST", "/v1/chat/completions", [], b"x")
    assert (caught.value.evidence["retry_after"], caught.value.evidence["status"]) == (7.0, status)


async def test_a_client_error_is_passed_on(server: tuple[Server, str], worker: HttpWorker) -> None:
    """A 400 is the worker's answer, not a failure."""
    server[0].status = 400
    response = await worker.forward("POST", "/v1/chat/completions", [], b"x")
    assert (response.status, await read(response)) == (400, b"")


async def test_health_reads_the_load(server: tuple[Server, str], worker: HttpWorker) -> None:
    """Requests running and waiting come from the worker's metrics."""
    assert await worker.check_health()
    assert worker.statistics() == WorkerStatistics(3, 2, 0.0)
    server[0].healthy = False
    assert not await worker.check_health()


async def test_nobody_there() -> None:
    """An address where nothing listens is unavailable, not a traceback."""
    worker = HttpWorker(parse_worker_url("http://127.0.0.1:9"))
    with pytest.raises(WorkerUnavailable, match="cannot be reached"):
        await worker.start()
    assert not await worker.check_health()
    with pytest.raises(WorkerUnavailable, match="cannot be reached"):
        await worker.forward("POST", "/v1/chat/completions", [], b"x")
    await worker.stop()


def test_load_of_sglang() -> None:
    """SGLang's names for the same."""
    text = b'sglang:num_running_reqs{m="x"} 5.0\nsglang:num_queue_reqs{m="x"} 1.0\nsglang:token_usage{m="x"} 0.25\n'
    assert read_load(text) == WorkerStatistics(5, 1, 0.25)
    assert read_load(b"nothing") == WorkerStatistics()


def test_load_of_one_rank() -> None:
    """VLLM labels each engine's; what has no label is the server's and counts for every rank."""
    text = b"".join(
        b'vllm:num_requests_running{engine="%d",model_name="m"} %d.0\nvllm:num_requests_waiting{model_name="m"} 1.0\n'
        % (rank, rank + 3)
        for rank in range(2)
    )
    assert [read_load(text, rank).running for rank in (None, 0, 1)] == [7, 3, 4]


@pytest.mark.parametrize(
    "chunks, counts",
    [
        (
            [b'{"usage": {"prompt_tokens":50,"completion_tokens":3,"prompt_tokens_details": {"cached_tokens": 48}}}'],
            TokenCounts(50, 48, 3),
        ),
        (
            [
                b'data: {"usage":null}\n\n',
                b'data: {"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_',
                b'tokens":7}}}\n\ndata: [DONE]',
            ],
            TokenCounts(9, 7, None),
        ),
        (
            [b'{"usage":{"input_tokens":20,"input_tokens_details":{"cached_tokens":16},"output_tokens":2}}'],
            TokenCounts(20, 16, 2),
        ),
        (
            [
                b'{"message":{"usage":{"input_tokens":4,"cache_read_input_tokens":128,"cache_creation_input_tokens":2}}}',
                b"x" * 9000,
                b'{"usage":{"output_tokens":5}}',
            ],
            TokenCounts(134, 128, 5),
        ),
        ([rb'{"text":"\"cached_tokens\": 9"}', b'{"usage":{"prompt_tokens":3}}'], TokenCounts(3, None, None)),
        ([b"x" * 5000, b'"cached_tokens":1' + b"x" * 9000], TokenCounts()),
        ([], TokenCounts()),
        (
            [b'{"usage":{"prompt_tokens":5,"completion_tokens":-1,"prompt_tokens_details":{"cached_tokens":500}}}'],
            TokenCounts(5, None, None),
        ),
        (
            [b'{"usage":{"prompt_tokens":1%b,"completion_tokens":1.5,"cached_tokens":1e300}}' % (b"0" * 40)],
            TokenCounts(),
        ),
    ],
)
def test_counts_are_read_off_both_ends(chunks: list[bytes], counts: TokenCounts) -> None:
    """Streamed or not, OpenAI's or Anthropic's, however it was cut; the model's own words are no counts, nor what cannot be."""
    sniffer = UsageSniffer()
    for chunk in chunks:
        sniffer.push(chunk)
    assert sniffer.counts() == counts
