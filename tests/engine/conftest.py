"""A tiny model with random weights, written as a Hugging Face folder, and a second implementation to compare with."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.vllm import VLLMWorker, vllm_workers
from numpy.typing import NDArray
from safetensors.numpy import save_file

TINY = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}


Tensors = dict[str, NDArray[np.float32]]
Vector = NDArray[np.float64]


def tiny_tensors(config: dict[str, Any], seed: int = 0) -> Tensors:
    """Random weights under Hugging Face names; large enough that greedy answers vary."""
    rng = np.random.default_rng(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim", hidden // config["num_attention_heads"])
    query, key = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for index in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{index}."
        shapes |= {
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "self_attn.q_proj.weight": (query, hidden),
            prefix + "self_attn.k_proj.weight": (key, hidden),
            prefix + "self_attn.v_proj.weight": (key, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, query),
            prefix + "post_attention_layernorm.weight": (hidden,),
            prefix + "mlp.gate_proj.weight": (inner, hidden),
            prefix + "mlp.up_proj.weight": (inner, hidden),
            prefix + "mlp.down_proj.weight": (hidden, inner),
        }
    return {
        name: (float(len(shape) == 1) + 0.2 * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_folder(path: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    """A Hugging Face folder with these weights."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file(tensors, path / "model.safetensors")
    return path


def reference_logits(config: dict[str, Any], tensors: Tensors, token_ids: Sequence[int]) -> NDArray[np.float64]:
    """Logits [tokens, vocabulary] by loops in float64: one position, one head at a time, no cache, no tiles."""
    w = {name: value.astype(np.float64) for name, value in tensors.items()}
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config.get("head_dim", config["hidden_size"] // heads)
    frequencies = config["rope_theta"] ** (-np.arange(0, dim, 2) / dim)

    def norm(x: Vector, weight: Vector) -> Vector:
        normed: Vector = x / np.sqrt(np.mean(x**2) + config["rms_norm_eps"]) * weight
        return normed

    def rotate(x: Vector, position: int) -> Vector:
        low, high = x[: dim // 2], x[dim // 2 :]
        cos, sin = np.cos(position * frequencies), np.sin(position * frequencies)
        return np.concatenate([low * cos - high * sin, high * cos + low * sin])

    states = [w["model.embed_tokens.weight"][token] for token in token_ids]
    for index in range(config["num_hidden_layers"]):
        p = f"model.layers.{index}."
        normed = [norm(x, w[p + "input_layernorm.weight"]) for x in states]
        q, k, v = ([w[p + f"self_attn.{name}_proj.weight"] @ x for x in normed] for name in "qkv")
        kv_slices = [slice(head * dim, (head + 1) * dim) for head in range(kv_heads)]
        keys = [[rotate(k[s][at], s) / dim**0.5 for s in range(len(states))] for at in kv_slices]
        for t, x in enumerate(states):
            mixed = []
            for head in range(heads):
                group = head // (heads // kv_heads)
                query = rotate(q[t][head * dim : (head + 1) * dim], t)
                scores = np.array([query @ keys[group][s] for s in range(t + 1)])
                weights = np.exp(scores - scores.max())
                mixed.append(sum(a * v[s][kv_slices[group]] for s, a in enumerate(weights / weights.sum())))
            attended = x + w[p + "self_attn.o_proj.weight"] @ np.concatenate(mixed)
            y = norm(attended, w[p + "post_attention_layernorm.weight"])
            gate = w[p + "mlp.gate_proj.weight"] @ y
            inner = gate / (1 + np.exp(-gate)) * (w[p + "mlp.up_proj.weight"] @ y)
            states[t] = attended + w[p + "mlp.down_proj.weight"] @ inner
    output = w["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    return np.array([output @ norm(x, w["model.norm.weight"]) for x in states])


class TinyModel:
    """The tiny model's folder, configuration and tensors, and what the reference makes of a prompt."""

    def __init__(self, path: Path, config: dict[str, Any], tensors: Tensors) -> None:
        self.path, self.config, self.tensors = path, config, tensors

    def logits(self, token_ids: Sequence[int]) -> NDArray[np.float64]:
        """The reference's logits, [tokens, vocabulary]."""
        return reference_logits(self.config, self.tensors, token_ids)

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The reference's greedy continuation, everything computed anew for every token."""
        token_ids = list(prompt)
        for _ in range(count):
            token_ids.append(int(self.logits(token_ids)[-1].argmax()))
        return token_ids[len(prompt) :]


@pytest.fixture(scope="session")
def make_tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TinyModel]:
    """Make a tiny model; keyword arguments change its configuration."""

    def make(**changes: Any) -> TinyModel:
        config = TINY | changes
        tensors = tiny_tensors(config)
        return TinyModel(write_folder(tmp_path_factory.mktemp("tiny"), config, tensors), config, tensors)

    return make


@pytest.fixture(scope="session")
def tiny(make_tiny: Callable[..., TinyModel]) -> TinyModel:
    """The tiny model."""
    return make_tiny()


@pytest.fixture(scope="package")
def vllm_settings() -> dict[str, int]:
    """Of the live vLLM: so few blocks that prompts evict each other, and so small steps that prompts come in chunks."""
    return {"num_gpu_blocks": 25, "max_num_batched_tokens": 128, "max_model_len": 512}


@pytest.fixture(scope="package")
def vllm(vllm_settings: dict[str, int]) -> Iterator[VLLMWorker]:
    """One vLLM worker."""
    names = {"num_gpu_blocks": "--num-gpu-blocks-override"}
    options = [(names.get(name, "--" + name.replace("_", "-")), str(value)) for name, value in vllm_settings.items()]
    with vllm_workers(1, *chain.from_iterable(options)) as (worker,):
        yield worker
