"""A gateway in front of a real vLLM worker, for each transport; benchmarks/vllm.py installs vLLM and writes the model."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from benchmarks.vllm import environment, model_folder

MODEL = "smollm2-135m"
START_SECONDS = 400

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


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(condition: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
    """Return when a condition holds; the test fails when it does not in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(httpx.HTTPError):
            if condition():
                return
        time.sleep(0.25)
    raise AssertionError(f"{what} did not come true in {seconds} seconds")


@dataclass
class Stand:
    """A gateway in front of one worker over one transport."""

    transport: str
    url: str
    worker: Process
    gateway: Process

    def state(self) -> dict[str, object]:
        """The worker as the gateway sees it."""
        found: dict[str, object] = httpx.get(f"{self.url}/v1/workers", timeout=10).json()["workers"][0]
        return found

    def wait_for(self, condition: Callable[[], bool], what: str, seconds: float) -> None:
        """Return when a condition holds; the test fails when it does not in time."""
        wait_for(condition, what, seconds)

    def wait_healthy(self) -> None:
        """Return when requests are taken."""
        wait_for(lambda: self.state()["state"] == "healthy", f"the {self.transport} worker's health")


@pytest.fixture(scope="module", params=["http", "grpc", "zmq"])
def stand(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """One worker and a gateway in front of it, for each transport in turn."""
    folder = tmp_path_factory.mktemp(request.param)
    events, replay, port, gateway_port = (free_port() for _ in range(4))
    with tempfile.TemporaryDirectory(prefix="fw-") as sockets:
        worker = Process(worker_command(request.param, port, events, replay), folder / "vllm.log", ENVIRONMENT)
        url = {
            "http": f"http://127.0.0.1:{port}?kv-events=tcp://127.0.0.1:{events}&kv-replay=tcp://127.0.0.1:{replay}",
            "grpc": f"grpc://127.0.0.1:{port}",
            "zmq": f"zmq+ipc://{sockets}/w?handshake=tcp://127.0.0.1:{port}&model={MODEL}",
        }[request.param]
        command = [sys.executable, "-m", "foreword", "serve", "--port", str(gateway_port), "--worker-urls", url]
        if request.param == "zmq":
            command += ["--model-path", str(model_folder())]
        gateway = Process(command, folder / "gateway.log")
        made = Stand(request.param, f"http://127.0.0.1:{gateway_port}", worker, gateway)
        try:
            worker.start()
            gateway.start()
            made.wait_healthy()
            yield made
        finally:
            gateway.kill()
            worker.kill()


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
