"""The model's numbers: its configuration, its weights in float32, and the one way to load them.

A file format (``gguf_file``, ``hf_folder``) is a ``TensorSource``: it knows the configuration and can write any tensor,
by its Hugging Face name, into an array of ours. ``load_weights`` lays the arrays out as ``model`` wants them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from foreword.errors import ModelError, ModelNotFound

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a Llama-architecture decoder, as its file states it.

    Attributes:
        inv_freq: rotary frequencies, one for every two dimensions of a head, long-context scaling already applied.
        eos_token_ids: the tokens that end an answer.
        tied: whether the embedding also is the output projection.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    inv_freq: tuple[float, ...]
    eos_token_ids: tuple[int, ...]
    tied: bool

    def __post_init__(self) -> None:
        if self.num_heads < 1 or self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"{self.num_heads} attention heads cannot share {self.num_kv_heads} key-value heads evenly.",
                hint="The model's configuration is damaged; fetch it again.",
            )
        if len(self.inv_freq) * 2 != self.head_dim:
            raise ModelError(
                f"The rotary embedding covers {len(self.inv_freq) * 2} of {self.head_dim} dimensions of a head.",
                hint="Only models that rotate whole heads are supported.",
            )

    @property
    def query_size(self) -> int:
        """Columns of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Columns of all key heads (or value heads) together."""
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. Matrices are [out, in], as in the files; what reads one input is fused into one matrix.

    Attributes:
        input_norm: [hidden].
        qkv: [query + key + value, hidden].
        output: [hidden, query].
        post_attention_norm: [hidden].
        gate_up: [2 * intermediate, hidden], the gate first.
        down: [hidden, intermediate].
    """

    input_norm: Array
    qkv: Array
    output: Array
    post_attention_norm: Array
    gate_up: Array
    down: Array


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights, float32. ``lm_head`` is ``embedding`` itself when the model ties them."""

    config: ModelConfig
    embedding: Array
    layers: tuple[LayerWeights, ...]
    norm: Array
    lm_head: Array


class TensorSource(Protocol):
    """An opened model file or folder; ``files`` are those that hold its tensors."""

    config: ModelConfig
    files: tuple[Path, ...]

    def read_into(self, name: str, out: Array) -> None:
        """Write the tensor of that Hugging Face name into ``out``; raises ModelError if it is absent or misshapen."""


def open_model(path: Path) -> TensorSource:
    """Read a model's configuration and where its tensors lie; raises ModelNotFound or ModelError."""
    from foreword.engine.gguf_file import GGUFFile  # noqa: PLC0415 - both import this module's types
    from foreword.engine.hf_folder import HFFolder  # noqa: PLC0415 - as above

    if path.is_dir():
        return HFFolder(path)
    if path.is_file():
        return GGUFFile(path)
    raise ModelNotFound(
        f"There is no model at {path}.",
        hint="Give a GGUF file or a Hugging Face folder with config.json and *.safetensors.",
    )


def model_digest(source: TensorSource) -> str:
    """SHA-256 of a model's configuration and of every byte of its tensor files."""
    digest = hashlib.sha256(repr(source.config).encode())
    for path in source.files:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def load_weights(source: TensorSource, *, num_threads: int = 2) -> Weights:
    """Read every tensor, ``num_threads`` at a time; raises ModelError."""
    weights = _allocate(source.config)
    with ThreadPoolExecutor(num_threads) as pool:
        for _ in pool.map(lambda target: source.read_into(*target), _targets(weights)):
            pass
    return weights


def _allocate(config: ModelConfig) -> Weights:
    hidden, inner = config.hidden_size, config.intermediate_size

    def array(*shape: int) -> Array:
        return np.empty(shape, np.float32)

    def layer() -> LayerWeights:
        return LayerWeights(
            input_norm=array(hidden),
            qkv=array(config.query_size + 2 * config.kv_size, hidden),
            output=array(hidden, config.query_size),
            post_attention_norm=array(hidden),
            gate_up=array(2 * inner, hidden),
            down=array(hidden, inner),
        )

    embedding = array(config.vocab_size, hidden)
    lm_head = embedding if config.tied else array(config.vocab_size, hidden)
    return Weights(config, embedding, tuple(layer() for _ in range(config.num_layers)), array(hidden), lm_head)


def _targets(weights: Weights) -> Iterator[tuple[str, Array]]:
    """Every tensor's name with the array, or part of a fused array, that it belongs in; the largest first."""
    yield "model.embed_tokens.weight", weights.embedding
    if not weights.config.tied:
        yield "lm_head.weight", weights.lm_head
    yield "model.norm.weight", weights.norm
    query, key, inner = weights.config.query_size, weights.config.kv_size, weights.config.intermediate_size
    for index, layer in enumerate(weights.layers):
        prefix = f"model.layers.{index}."
        yield prefix + "input_layernorm.weight", layer.input_norm
        yield prefix + "self_attn.q_proj.weight", layer.qkv[:query]
        yield prefix + "self_attn.k_proj.weight", layer.qkv[query : query + key]
        yield prefix + "self_attn.v_proj.weight", layer.qkv[query + key :]
        yield prefix + "self_attn.o_proj.weight", layer.output
        yield prefix + "post_attention_layernorm.weight", layer.post_attention_norm
        yield prefix + "mlp.gate_proj.weight", layer.gate_up[:inner]
        yield prefix + "mlp.up_proj.weight", layer.gate_up[inner:]
        yield prefix + "mlp.down_proj.weight", layer.down


def check_shape(name: str, shape: tuple[int, ...], out: Array) -> None:
    """Raise ModelError unless a tensor has the shape its configuration calls for."""
    if shape != out.shape:
        raise ModelError(
            f"Tensor {name} has shape {list(shape)} where the configuration calls for {list(out.shape)}.",
            hint="The model's files do not belong together; fetch it again.",
        )
