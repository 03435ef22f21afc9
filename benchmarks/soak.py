"""A gateway in front of two workers that are killed at random, under 32 clients: what every request came to, and what is left.

    python -m benchmarks.soak [SECONDS]

The workers are stubs of this package that speak like vLLM: all four APIs, streams, a prefix cache, KV events with replay.
Each request must be answered whole or refused with a typed error, mid-stream as an event; afterwards no request may be in
flight, and the gateway's memory, descriptors and connections must be where they were. Exit 1 otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from benchmarks.processes import free_port, wait_for
from foreword.config import Config
from foreword.core.hashing import BlockHasher
from foreword.core.prefix_cache import PrefixCache
from foreword.core.retention import IN_MEMORY
from foreword.gateway.app import create_app
from foreword.gateway.kv_publisher import KvEventsConfig, KvPublisher
from foreword.gateway.server import Server
from foreword.gateway.tokenizers import TokenizerRegistry
from foreword.testing.server import load_bytes
from foreword.testing.workers import BLOCK, FakeWorker

CLIENTS, SAMPLE_SECONDS, SETTLE_SECONDS = 32, 2.0, 20.0
STEP_SECONDS, ANSWER_TOKENS, WORKER_BLOCKS = 0.02, 30, 4000
MODEL = "stub"
GROWTH = 12 << 20
"""Bytes that the gateway may have grown by from the second fifth of the run to the last."""
DESCRIPTORS = 2 * CLIENTS
"""Descriptors more than at the start that idle kept-alive connections account for."""

Json = dict[str, Any]


# --- the workers


class _Engine(FakeWorker):
    """A fake worker that takes its time and publishes what its cache does."""

    def __init__(self, events: int, replay: int) -> None:
        super().__init__(MODEL, MODEL, answer=list(b"word " * (ANSWER_TOKENS // 5)), max_model_len=8192)
        self.prefix_cache = PrefixCache(WORKER_BLOCKS, BlockHasher(BLOCK), retention=IN_MEMORY, enable_events=True)
        self._publisher = KvPublisher(
            KvEventsConfig(
                enable_kv_cache_events=True, endpoint=f"tcp://*:{events}", replay_endpoint=f"tcp://*:{replay}"
            )
        )

    async def start(self) -> None:
        """Publish after every few steps."""
        self._publishing = asyncio.create_task(self._publish())

    async def _misbehave(self, number: int) -> None:
        await asyncio.sleep(STEP_SECONDS)
        await super()._misbehave(number)

    async def _publish(self) -> None:
        while True:
            await asyncio.sleep(STEP_SECONDS)
            if events := self.prefix_cache.take_events():
                self._publisher.publish(events)


def run_worker(port: int, events: int, replay: int) -> None:
    """One worker, until it is killed."""
    config = Config(port=port, log_level="critical", seam_history=0)
    Server(create_app(config, TokenizerRegistry([load_bytes("here", MODEL)]), [_Engine(events, replay)])).run()


@dataclass
class Worker:
    """A worker's process, which is killed and started again at the same ports."""

    ports: tuple[int, int, int] = field(default_factory=lambda: (free_port(), free_port(), free_port()))
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """As the gateway is given it."""
        port, events, replay = self.ports
        return f"http://127.0.0.1:{port}?kv-events=tcp://127.0.0.1:{events}&kv-replay=tcp://127.0.0.1:{replay}"

    def start(self) -> None:
        """Start it."""
        command = [sys.executable, "-m", "benchmarks.soak", "--worker", *map(str, self.ports)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        """Kill -9."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None


# --- the clients


def some_request(chooser: random.Random) -> tuple[str, Json]:
    """A path and a body: of any API, streamed or not, behind one of a few shared beginnings."""
    shared = f"You are assistant number {chooser.randrange(6)}. " * chooser.choice([5, 20, 60])
    question = f"Question {chooser.randrange(10_000)}?"
    ids = list((shared + question).encode())
    messages = [{"role": "system", "content": shared}, {"role": "user", "content": question}]
    forms: list[tuple[str, Json]] = [
        ("/v1/chat/completions", {"messages": messages}),
        ("/v1/completions", {"prompt": ids, "max_tokens": ANSWER_TOKENS}),
        ("/v1/responses", {"instructions": shared, "input": question}),
        ("/v1/messages", {"system": shared, "messages": messages[1:], "max_tokens": ANSWER_TOKENS}),
    ]
    path, fields = chooser.choice(forms)
    return path, {"model": MODEL, "stream": chooser.random() < 0.7, **fields}


ENDS = (b"data: [DONE]", b"event: message_stop", b"event: response.completed", b"event: response.incomplete")
_TYPES = re.compile(rb'"error":\s*\{|"type":\s*"error"')


def outcome(status: int, content_type: str, body: bytes) -> str:
    """How a request was answered; "FAULT" where it was neither answered whole nor refused with a typed error."""
    tail = body[-200:]
    if status == 200 and "event-stream" in content_type:
        last = [part for part in body.strip().split(b"\n\n") if part][-2:]
        if any(_TYPES.search(part) for part in last):
            return "ended by an error event"
        return "answered" if last and any(end in last[-1] for end in ENDS) else f"FAULT cut stream: {tail!r}"
    try:
        parsed = json.loads(body)
    except ValueError:
        return f"FAULT {status} without JSON: {tail!r}"
    if status == 200:
        return "answered" if "usage" in parsed else f"FAULT 200 without usage: {tail!r}"
    known = status in (502, 503, 504) and isinstance(parsed.get("error"), dict) and parsed["error"].get("message")
    return f"refused with {status}" if known else f"FAULT {status}: {tail!r}"


async def one_client(number: int, url: str, until: float, outcomes: Counter[str]) -> None:
    """Ask again and again; now and then leave in the middle, or come over a new connection."""
    chooser = random.Random(number)
    timeout = aiohttp.ClientTimeout(total=60)
    while time.monotonic() < until:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            for _ in range(chooser.randrange(1, 20)):
                if time.monotonic() < until:
                    outcomes[told := await ask(session, url, chooser)] += 1
                    if told.startswith("refused"):
                        await asyncio.sleep(chooser.uniform(0.2, 0.6))


async def ask(session: aiohttp.ClientSession, url: str, chooser: random.Random) -> str:
    """One request's outcome."""
    path, body = some_request(chooser)
    leaves = chooser.random() < 0.05
    try:
        async with session.post(url + path, json=body) as response:
            if leaves:
                await response.content.readany()
                return "left"
            return outcome(response.status, response.content_type, await response.read())
    except (aiohttp.ClientError, TimeoutError) as error:
        return f"FAULT {type(error).__name__}: {error}"


async def kill_at_random(workers: list[Worker], until: float, chooser: random.Random) -> int:
    """Kill one worker or both every few seconds; each comes back soon. Returns how often."""
    kills = 0
    while time.monotonic() < until - 10:
        await asyncio.sleep(chooser.uniform(3, 15))
        for worker in chooser.sample(workers, chooser.choice([1, 1, 1, 2])):
            worker.kill()
            kills += 1
        await asyncio.sleep(chooser.uniform(0.2, 3))
        for worker in workers:
            if worker.process is None:
                worker.start()
    return kills


# --- the run


@dataclass
class Report:
    """What became of it all."""

    seconds: float
    kills: int
    outcomes: dict[str, int]
    memory_mb: tuple[float, float]
    descriptors: tuple[int, int]
    left_in_flight: int
    mispredicted: int
    predicted_tokens: int
    faults: list[str] = field(default_factory=list)


async def watch(process: psutil.Process, until: float, memory: list[float]) -> None:
    """Sample the gateway's memory."""
    while time.monotonic() < until:
        memory.append(process.memory_info().rss)
        await asyncio.sleep(SAMPLE_SECONDS)


async def settled(url: str) -> list[Json]:
    """The workers' rows once nothing is in flight, or after a while."""
    end = time.monotonic() + SETTLE_SECONDS
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{url}/v1/workers") as response:
                rows: list[Json] = (await response.json())["workers"]
            if time.monotonic() > end or not any(row["requests"] or row["backlog_tokens"] for row in rows):
                return rows
            await asyncio.sleep(0.2)


async def drive(url: str, process: psutil.Process, workers: list[Worker], seconds: float) -> Report:
    """The whole run against a gateway that is up."""
    descriptors = process.num_fds()
    outcomes: Counter[str] = Counter()
    memory: list[float] = []
    until = time.monotonic() + seconds
    killing = asyncio.create_task(kill_at_random(workers, until, random.Random(11)))
    clients = [one_client(number, url, until, outcomes) for number in range(CLIENTS)]
    await asyncio.gather(watch(process, until, memory), *clients)
    kills = await killing
    rows = await settled(url)
    fifth = max(len(memory) // 5, 1)
    report = Report(
        seconds,
        kills,
        dict(outcomes.most_common()),
        (statistics.median(memory[fifth : 2 * fifth]) / 1e6, statistics.median(memory[-fifth:]) / 1e6),
        (descriptors, process.num_fds()),
        sum(row["requests"] + row["backlog_tokens"] for row in rows),
        sum(row["mispredicted"] for row in rows),
        sum(row["predicted_tokens"] for row in rows),
    )
    report.faults = find_faults(report)
    return report


def find_faults(report: Report) -> list[str]:
    """What was promised and is not so."""
    faults = [f"{count} x {name}" for name, count in report.outcomes.items() if name.startswith("FAULT")]
    if report.memory_mb[1] - report.memory_mb[0] > GROWTH / 1e6:
        faults.append(f"memory grew from {report.memory_mb[0]:.1f} to {report.memory_mb[1]:.1f} MB")
    if report.descriptors[1] > report.descriptors[0] + DESCRIPTORS:
        faults.append(f"descriptors grew from {report.descriptors[0]} to {report.descriptors[1]}")
    if report.left_in_flight:
        faults.append(f"{report.left_in_flight} requests or backlog tokens are left in flight")
    if not report.outcomes.get("answered"):
        faults.append("nothing was answered")
    return faults


def soak(seconds: float) -> Report:
    """Start everything, drive it, stop it."""
    workers, port = [Worker(), Worker()], free_port()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foreword-soak-")))
        for worker in workers:
            stack.callback(worker.kill)
            worker.start()
        for worker in workers:
            wait_for(worker.ports[0], "/v1/models", MODEL.encode())
        command = [sys.executable, "-m", "foreword", "serve", "--port", str(port), "--request-timeout", "50",
                   "--worker-urls", *(worker.url for worker in workers)]  # fmt: skip
        log = stack.enter_context((folder / "gateway.log").open("wb"))
        gateway = subprocess.Popen(command, stdout=log, stderr=log)
        stack.callback(gateway.wait)
        stack.callback(gateway.terminate)
        wait_for(port, "/v1/models", MODEL.encode())
        return asyncio.run(drive(f"http://127.0.0.1:{port}", psutil.Process(gateway.pid), workers, seconds))


def main(arguments: list[str]) -> int:
    """Print the report as JSON; exit 1 when it has faults."""
    if arguments[:1] == ["--worker"]:
        run_worker(*map(int, arguments[1:4]))
        return 0
    report = soak(float(arguments[0]) if arguments else 600.0)
    print(json.dumps(report.__dict__, indent=2))
    return int(bool(report.faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
