"""What the gateway adds in front of an HTTP worker: directly, through Foreword, and through smg 1.13.0, interleaved.

    make .venv-peers/.ready && python -m benchmarks.forwarding

The worker is a stub that streams 200 events to a chat request of 10 KB. Printed are the median time of a whole stream over one
connection, what each gateway adds to it, and streams a second over 16 connections. Logs go to /dev/null.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
EVENTS = 200
CONNECTIONS, ROUNDS, SECONDS, SINGLE = 16, 5, 2.0, 60

EVENT = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
MODELS = b'{"object":"list","data":[{"id":"stub","object":"model","owned_by":"stub","max_model_len":32768}]}'


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection of the stub worker."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if b"content-length: " in head:
                await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
            if b"/chat/completions" in head.split(b"\r\n")[0]:
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                )
                for _ in range(EVENTS):
                    writer.write(b"%x\r\n%b\r\n" % (len(EVENT), EVENT))
                    await writer.drain()
                    await asyncio.sleep(0)
                writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
            else:
                body = MODELS if b"/v1/models" in head else b"{}"
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                    % (len(body), body)
                )
            await writer.drain()
    writer.close()


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def stub() -> Iterator[int]:
    """The worker, in a process of its own."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.forwarding", "--stub", str(port)])
    try:
        wait_for(port, "/v1/models")
        yield port
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def running(command: list[str], port: int) -> Iterator[int]:
    """A gateway, once it lists the worker's model."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port, "/v1/models", b"stub")
        yield port
    finally:
        process.terminate()
        process.wait(20)


def wait_for(port: int, path: str, text: bytes = b"") -> None:
    """Return when a server answers a path with a text."""
    for _ in range(300):
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=1) as answer,
        ):
            if text in answer.read():
                return
        time.sleep(0.1)
    raise RuntimeError(f"nothing useful at {port}{path}")


def request() -> bytes:
    """A chat request of 10 KB that streams."""
    messages = [{"role": "user", "content": "a question of many words " * 400}]
    body = json.dumps({"model": "stub", "messages": messages, "stream": True}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


def stream_once(connection: socket.socket, data: bytes) -> None:
    """Send a request and read its stream to the end."""
    connection.sendall(data)
    tail = b""
    while not tail.endswith(b"0\r\n\r\n"):
        chunk = connection.recv(1 << 16)
        if not chunk:
            raise RuntimeError(f"the stream broke off after {tail!r}")
        tail = (tail + chunk)[-64:]


def latency(port: int) -> float:
    """Median seconds of a stream over one connection."""
    data, times = request(), []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(SINGLE):
            start = time.perf_counter()
            stream_once(connection, data)
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def rate(port: int) -> float:
    """Streams a second over many connections."""
    end, done = time.perf_counter() + SECONDS, [0] * CONNECTIONS

    def work(number: int) -> None:
        data = request()
        with socket.create_connection(("127.0.0.1", port)) as connection:
            while time.perf_counter() < end:
                stream_once(connection, data)
                done[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / SECONDS


def main() -> None:
    """Print the table."""
    ours, theirs = free_port(), free_port()
    smg = str(ROOT / ".venv-peers" / "bin" / "smg")
    with stub() as worker, contextlib.ExitStack() as stack:
        url = f"http://127.0.0.1:{worker}"
        ports = {"direct": worker}
        foreword = [sys.executable, "-m", "foreword", "serve", "--port", str(ours), "--worker-urls", url]
        ports["foreword"] = stack.enter_context(running(foreword, ours))
        if Path(smg).exists():
            launch = [smg, "launch", "--host", "127.0.0.1", "--port", str(theirs), "--worker-urls", url]
            ports["smg 1.13.0"] = stack.enter_context(running(launch, theirs))
        latencies: dict[str, list[float]] = {name: [] for name in ports}
        rates: dict[str, list[float]] = {name: [] for name in ports}
        for number in range(ROUNDS):
            for name in sorted(ports, reverse=bool(number % 2)):
                latencies[name].append(latency(ports[name]))
                rates[name].append(rate(ports[name]))
        direct = statistics.median(latencies["direct"])
        for name in ports:
            median = statistics.median(latencies[name])
            added = statistics.median(
                one - base for one, base in zip(latencies[name], latencies["direct"], strict=True)
            )
            print(
                f"{name:12} {median * 1e3:7.2f} ms a stream, {added * 1e3:+6.2f} ms added,"
                f" {statistics.median(rates[name]):7.1f} streams/s ({min(rates[name]):.0f}-{max(rates[name]):.0f})"
            )
        print(f"(direct: {direct * 1e3:.2f} ms; {EVENTS} events; {ROUNDS} interleaved rounds)")


async def _serve(port: int) -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--stub"]:
        import uvloop

        uvloop.run(_serve(int(sys.argv[2])))
    else:
        main()
