"""A gateway in front of a real vLLM worker, for each transport; benchmarks/vllm.py installs vLLM and writes the model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import zmq.asyncio
from benchmarks.processes import free_port
from benchmarks.vllm import environment, model_folder

from foreword.core.events import BlockStored
from foreword.gateway.kv_subscriber import request_replay

MODEL = "smollm2-135m"
START_SECONDS = 400
EVENTS_SECONDS = 0.05
"""An engine publishes its events on a thread of its own, milliseconds after the answer that they belong to."""

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "SMG_VLLM_SERVICER_WARMUP": "off",
}


@dataclass
class Process:
    """A program in a process group of its own, its output in a file."""

    command: list[str]
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        with self.log.open("ab") as log:
            self.running = subprocess.Popen(
                self.command, env={**os.environ, **self.environment}, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """Kill -9, the whole group."""
        if self.running is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.running.pid, signal.SIGKILL)
            self.running.wait()
            self.running = None


def wait_for(condition: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
    """Return when a condition holds; the test fails when it does not in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(httpx.HTTPError):
            if condition():
                return
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come true in {seconds} seconds")


KEYS = {"acme": "key-of-acme", "globex": "key-of-globex"}
"""Organisations and their keys; over gRPC there can be none."""


@dataclass
class Stand:
    """A gateway in front of one worker over one transport."""

    transport: str
    url: str
    worker: Process
    gateway: Process
    replay: str
    client: httpx.Client

    def headers(self, organisation: str = "acme") -> dict[str, str]:
        """What an organisation's requests carry."""
        return {} if self.transport == "grpc" else {"authorization": f"Bearer {KEYS[organisation]}"}

    def state(self) -> dict[str, object]:
        """The worker as the gateway sees it."""
        answer = self.client.get(f"{self.url}/v1/workers", headers=self.headers()).json()
        found: dict[str, object] = answer["workers"][0]
        return found

    def stored_ids(self) -> set[tuple[int, ...]]:
        """The ids of every block that the worker says it ever stored behind no other."""
        with zmq.asyncio.Context() as context:
            batches = asyncio.run(request_replay(context, self.replay, 0))
        events = [event for batch in batches for event in batch.events if isinstance(event, BlockStored)]
        return {tuple(event.token_ids) for event in events if event.parent_block_hash is None}

    def wait_for(self, condition: Callable[[], bool], what: str, seconds: float) -> None:
        """Return when a condition holds; the test fails when it does not in time."""
        wait_for(condition, what, seconds)

    def settle(self) -> None:
        """Return when the answers are on the books and their KV events have had time to come after them."""
        wait_for(lambda: self.state()["requests"] == 0, "an answer on the books", 5)
        time.sleep(EVENTS_SECONDS)

    def wait_healthy(self) -> None:
        """Return when requests are taken."""
        wait_for(lambda: self.state()["state"] == "healthy", f"the {self.transport} worker's health")


@pytest.fixture(scope="module", params=["http", "grpc", "zmq"])
def stand(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """One worker and a gateway in front of it, for each transport in turn."""
    folder = tmp_path_factory.mktemp(request.param)
    events, replay, port, gateway_port = (free_port() for _ in range(4))
    with tempfile.TemporaryDirectory(prefix="fw-") as sockets, httpx.Client(timeout=120) as client:
        worker = Process(worker_command(request.param, port, events, replay), folder / "vllm.log", ENVIRONMENT)
        url = {
            "http": f"http://127.0.0.1:{port}?kv-events=tcp://127.0.0.1:{events}&kv-replay=tcp://127.0.0.1:{replay}",
            "grpc": f"grpc://127.0.0.1:{port}",
            "zmq": f"zmq+ipc://{sockets}/w?handshake=tcp://127.0.0.1:{port}&model={MODEL}",
        }[request.param]
        command = [sys.executable, "-m", "foreword", "serve", "--port", str(gateway_port), "--worker-urls", url]
        if request.param != "grpc":
            keys = folder / "keys"
            keys.write_text("".join(f"{organisation} {key} admin\n" for organisation, key in KEYS.items()))
            keys.chmod(0o600)
            command += ["--model-path", str(model_folder()), "--api-keys", str(keys)]
        gateway = Process(command, folder / "gateway.log")
        replay_at = f"tcp://127.0.0.1:{replay}"
        made = Stand(request.param, f"http://127.0.0.1:{gateway_port}", worker, gateway, replay_at, client)
        try:
            worker.start()
            gateway.start()
            made.wait_healthy()
            yield made
        finally:
            gateway.kill()
            worker.kill()


@dataclass
class Pair:
    """A gateway in front of two workers over HTTP."""

    url: str
    workers: dict[str, Process]
    gateway: Process
    client: httpx.Client

    def states(self) -> dict[str, dict[str, object]]:
        """The workers as the gateway sees them, by name."""
        rows = self.client.get(f"{self.url}/v1/workers").json()["workers"]
        return {row["name"]: row for row in rows}

    def wait_for(self, condition: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
        """Return when a condition holds; the test fails when it does not in time."""
        wait_for(condition, what, seconds)

    def settle(self) -> None:
        """Return when the answers are on the books and their KV events have had time to come after them."""
        wait_for(lambda: not any(row["requests"] for row in self.states().values()), "answers on the books", 5)
        time.sleep(EVENTS_SECONDS)

    def wait_healthy(self) -> None:
        """Return when both take requests."""
        wait_for(lambda: all(row["state"] == "healthy" for row in self.states().values()), "two healthy workers")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two workers of one model and a gateway that knows their tokenizer."""
    folder = tmp_path_factory.mktemp("pair")
    gateway_port, urls, workers, client = free_port(), [], {}, httpx.Client(timeout=120)
    for number in range(2):
        port, events, replay = (free_port() for _ in range(3))
        log = folder / f"vllm-{number}.log"
        workers[f"http://127.0.0.1:{port}"] = Process(worker_command("http", port, events, replay), log, ENVIRONMENT)
        urls.append(f"http://127.0.0.1:{port}?kv-events=tcp://127.0.0.1:{events}&kv-replay=tcp://127.0.0.1:{replay}")
    command = [sys.executable, "-m", "foreword", "serve", "--port", str(gateway_port), "--worker-urls", *urls]
    gateway = Process([*command, "--model-path", str(model_folder())], folder / "gateway.log")
    made = Pair(f"http://127.0.0.1:{gateway_port}", workers, gateway, client)
    try:
        for process in (*workers.values(), gateway):
            process.start()
        made.wait_healthy()
        yield made
    finally:
        client.close()
        for process in (gateway, *workers.values()):
            process.kill()


def worker_command(transport: str, port: int, events: int, replay: int) -> list[str]:
    """How vLLM is started for a transport."""
    publish = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{events}",
        "replay_endpoint": f"tcp://*:{replay}",
        "topic": "kv-events",
    }
    by_transport = {
        "http": ["--host", "127.0.0.1", "--port", str(port), "--enable-prompt-tokens-details"],
        "grpc": ["--grpc", "--host", "127.0.0.1", "--port", str(port)],
        "zmq": ["--headless", "--data-parallel-size", "1", "--data-parallel-size-local", "1",
                "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", str(port)],
    }  # fmt: skip
    return [
        str(environment() / "bin" / "vllm"), "serve", str(model_folder()), "--served-model-name", MODEL,
        "--dtype", "bfloat16", "--max-model-len", "4096", "--max-num-seqs", "4", "--enforce-eager", "--block-size", "32",
        "--num-gpu-blocks-override", "400", "--kv-events-config", json.dumps(publish), *by_transport[transport],
    ]  # fmt: skip
