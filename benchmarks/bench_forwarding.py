"""What the gateway adds in front of an HTTP worker: Foreword, smg and LiteLLM's proxy before one stub, interleaved.

The stub streams 200 events to a chat request of 10 KB. Over one connection the median time of a whole stream through each
gateway is set against the same stream straight from the stub; over sixteen, streams a second are counted. All three log as
they do by default, to /dev/null. The peers live in their own environment: ``make .venv-peers/.ready``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import cast

import uvloop

from benchmarks.processes import free_port, running
from benchmarks.table import Row, compare_rates

ROOT = Path(__file__).parents[1]
PEERS = ROOT / ".venv-peers"
EVENTS = 200
CONNECTIONS, ROUNDS, SECONDS, SINGLE = 16, 5, 1.5, 40
BOUND = 1.0
"""Milliseconds that may be added at the median."""

ENVIRONMENT = {
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
"""LiteLLM starts without a key, as the others do, and without fetching its price list."""

READY = "/v1/models", b"stub"
"""A server that lists the worker's model is up."""

CHUNKS = [
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"stub","choices":[{"index":0,"delta":'
    b'{"content":"word%d "},"finish_reason":null}]}\n\n' % number
    for number in range(EVENTS)
]
"""Each unlike the one before: LiteLLM takes a model that repeats itself for broken."""
LAST = b"data: [DONE]\n\n"
MODELS = (
    b'{"object":"list","data":[{"id":"stub","object":"model","created":1,"owned_by":"stub","max_model_len":32768}]}'
)


class _Stub(asyncio.Protocol):
    """One connection of the worker: a chat gets its events one write each, anything else is answered at once."""

    def __init__(self) -> None:
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        head = self._data[:end].lower()
        length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0]) if b"content-length: " in head else 0
        if len(self._data) < end + length:
            return
        self._data = self._data[end + length :]
        if b"/chat/completions" in head.split(b"\r\n")[0]:
            self._stream(EVENTS)
        else:
            body = MODELS if b"/v1/models" in head else b"{}"
            self._transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
            )

    def _stream(self, left: int) -> None:
        """The next event; each is a write of its own, as an engine's steps are."""
        if left == EVENTS:
            self._transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
        if self._transport.is_closing():
            return
        event = CHUNKS[-left] if left else LAST
        self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        if left:
            asyncio.get_running_loop().call_soon(self._stream, left - 1)
        else:
            self._transport.write(b"0\r\n\r\n")


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Stub, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


def request() -> bytes:
    """A chat request of 10 KB that streams."""
    messages = [{"role": "user", "content": "a question of many words " * 400}]
    body = json.dumps({"model": "stub", "messages": messages, "stream": True}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


class _Client(asyncio.Protocol):
    """Sends the next request when a stream has ended, until its time is up; notes how long each took."""

    def __init__(self, data: bytes, end: float, limit: int, done: asyncio.Future[None]) -> None:
        self.times: list[float] = []
        self._data, self._end, self._limit, self._done = data, end, limit, done
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def _send(self) -> None:
        self._started = time.perf_counter()
        if self._started < self._end and len(self.times) < self._limit:
            self._transport.write(self._data)
        else:
            self._transport.close()
            self._done.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-32:]
        if self._tail.endswith(b"0\r\n\r\n") and LAST in self._tail:
            self.times.append(time.perf_counter() - self._started)
            self._tail = b""
            self._send()

    def connection_lost(self, _: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(RuntimeError(f"the stream broke off after {self._tail!r}"))


async def _streams(port: int, connections: int, seconds: float, limit: int) -> list[float]:
    loop = asyncio.get_running_loop()
    end, data = time.perf_counter() + seconds, request()
    pending = [loop.create_future() for _ in range(connections)]
    clients = [_Client(data, end, limit, done) for done in pending]
    for client in clients:
        await loop.create_connection(functools.partial(_same, client), "127.0.0.1", port)
    await asyncio.gather(*pending)
    return [one for client in clients for one in client.times]


def _same(client: _Client) -> _Client:
    return client


def latency(port: int) -> float:
    """Median seconds of a stream over one connection."""
    return statistics.median(uvloop.run(_streams(port, 1, 60.0, SINGLE)))


def rate(port: int) -> float:
    """Streams a second over many connections."""
    return len(uvloop.run(_streams(port, CONNECTIONS, SECONDS, 1 << 30))) / SECONDS


def peer_version(name: str) -> str:
    """A peer's installed version."""
    folder = next(PEERS.glob("lib/python*/site-packages"))
    return next(found.version for found in distributions(name=name, path=[str(folder)]))


@contextlib.contextmanager
def gateways() -> Iterator[dict[str, int]]:
    """The stub as "direct", and every gateway in front of it, by name."""
    worker, ours, smg, litellm = (free_port() for _ in range(4))
    url = f"http://127.0.0.1:{worker}"
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foreword-bench-")))
        config = folder / "litellm.yaml"
        config.write_text(
            "model_list:\n- model_name: stub\n  litellm_params:\n"
            f"    {{model: openai/stub, api_base: {url}/v1, api_key: none}}\n"
        )
        stub = [sys.executable, "-m", "benchmarks.bench_forwarding", "--stub", str(worker)]
        stack.enter_context(running(stub, worker, *READY))
        commands = {
            "foreword": (ours, [sys.executable, "-m", "foreword", "serve", "--port", str(ours), "--worker-urls", url]),
            "smg": (smg, [str(PEERS / "bin" / "smg"), "launch", "--host", "127.0.0.1", "--port", str(smg),
                          "--prometheus-port", str(free_port()), "--worker-urls", url]),
            "litellm": (litellm, [str(PEERS / "bin" / "litellm"), "--config", str(config), "--host", "127.0.0.1",
                                  "--port", str(litellm), "--telemetry", "False"]),
        }  # fmt: skip
        yield {
            "direct": worker,
            **{
                name: stack.enter_context(running(command, port, *READY, ENVIRONMENT))
                for name, (port, command) in commands.items()
            },
        }


def measure() -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Milliseconds a stream, and streams a second, by server: one figure a round, in turn."""
    with gateways() as ports:
        for port in ports.values():
            rate(port)  # warms it
        latencies: dict[str, list[float]] = {name: [] for name in ports}
        rates: dict[str, list[float]] = {name: [] for name in ports}
        for number in range(ROUNDS):
            for name in list(ports)[:: -1 if number % 2 else 1]:
                latencies[name].append(latency(ports[name]) * 1e3)
                rates[name].append(rate(ports[name]))
    return latencies, rates


def rows() -> list[Row]:
    """What the gateway adds, against its bound and the peers; and its rate against theirs."""
    latencies, rates = measure()
    direct = statistics.median(latencies["direct"])
    added = {name: [one - direct for one in times] for name, times in latencies.items()}
    name = f"forwarding a 10 KB chat, {EVENTS} events"
    print({key: round(statistics.median(value), 3) for key, value in latencies.items()}, "ms a stream", file=sys.stderr)
    ours = statistics.median(added["foreword"])
    bounds = sorted(BOUND / one for one in added["foreword"])
    found = [Row(f"{name}: added", ours, BOUND, "the bound", "ms", BOUND / ours, (bounds[0], bounds[-1]), 1.0)]
    for peer, target in (("litellm", 5.0), ("smg", 0.0)):
        label = f"{peer} {peer_version(peer)}"
        ratios = [b / a for a, b in zip(added["foreword"], added[peer], strict=True)]
        median = statistics.median(added[peer])
        found += [
            Row(f"{name}: added", ours, median, label, "ms", median / ours, (min(ratios), max(ratios)), 0.0),
            compare_rates(f"{name}: streams", rates["foreword"], rates[peer], peer_name=label, target=target),
        ]
    return found


if __name__ == "__main__" and sys.argv[1:2] == ["--stub"]:
    uvloop.run(_serve(int(sys.argv[2])))
