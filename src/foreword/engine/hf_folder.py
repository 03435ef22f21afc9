"""Read a Hugging Face model folder: config.json, generation_config.json and *.safetensors, sharded or not.

The safetensors files are mapped and read here: the package's numpy reader has no bfloat16, which most models come in.
Source of the format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from foreword.engine.rope import inverse_frequencies
from foreword.engine.weights import Array, ModelConfig, check_shape
from foreword.errors import ModelError, ModelNotFound

_MAX_HEADER = 100_000_000
"""The format's own limit, in bytes."""


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def _bf16(raw: NDArray[np.uint8]) -> Array:
    return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)


_DTYPES: dict[str, Callable[[NDArray[np.uint8]], NDArray[Any]]] = {
    "F32": lambda raw: raw.view("<f4"),
    "F16": lambda raw: raw.view("<f2"),
    "BF16": _bf16,
}


class _Shard:
    """One mapped .safetensors file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= _MAX_HEADER:
                raise _damaged(path)
            try:
                header = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
                header.pop("__metadata__", None)
                self.entries = {name: msgspec.json.decode(raw, type=_Entry) for name, raw in header.items()}
            except msgspec.MsgspecError:
                raise _damaged(path) from None
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._start = 8 + length

    def read_into(self, name: str, out: Array) -> None:
        entry = self.entries[name]
        check_shape(name, entry.shape, out)
        convert = _DTYPES.get(entry.dtype)
        if convert is None:
            raise ModelError(
                f"Tensor {name} is {entry.dtype}, which cannot be read.", hint="Take a model in bfloat16 or float32."
            )
        start, stop = entry.data_offsets
        if not 0 <= start <= stop <= len(self._data) - self._start:
            raise _damaged(self.path)
        try:
            raw = np.frombuffer(self._data, np.uint8, stop - start, self._start + start)
            out[...] = convert(raw).reshape(entry.shape)
        except ValueError:
            raise _damaged(self.path) from None


class HFFolder:
    """An opened model folder; a TensorSource."""

    def __init__(self, path: Path) -> None:
        self.path = path
        paths = sorted(path.glob("*.safetensors"))
        if not paths:
            raise ModelNotFound(f"{path} holds no *.safetensors file.", hint="Give a complete Hugging Face folder.")
        self.files = tuple(paths)
        shards = [_Shard(shard) for shard in paths]
        self._owner = {name: shard for shard in shards for name in shard.entries}
        generation = _read_json(path / "generation_config.json") if (path / "generation_config.json").exists() else {}
        self.config = _config(_read_json(path / "config.json"), generation)

    def read_into(self, name: str, out: Array) -> None:
        """Convert a tensor to float32 in ``out``; raises ModelError."""
        if name not in self._owner:
            raise ModelError(f"{self.path} has no tensor {name}.", hint="Fetch the model again.")
        self._owner[name].read_into(name, out)


def _damaged(path: Path) -> ModelError:
    return ModelError(f"{path} is damaged or not a safetensors file.", hint="Fetch the model again.")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        raise ModelNotFound(f"{path.parent} holds no {path.name}.", hint="Give a complete folder.") from None
    except msgspec.MsgspecError as error:
        raise ModelError(f"{path} is not valid JSON: {error}.", hint="Fetch the model again.") from None


def _config(config: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    _check_supported(config)
    try:
        return _llama_config(config, generation)
    except KeyError as error:
        raise ModelError(f"config.json lacks {error}.", hint="Give a complete Hugging Face folder.") from None


def _check_supported(config: Mapping[str, Any]) -> None:
    """What the decoder does not compute is refused here, by name."""
    if config.get("model_type") != "llama":
        raise ModelError(
            f"Model type {config.get('model_type')!r} is not supported.",
            hint='The embedded engine runs "llama" models.',
        )
    for key, default in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
        if config.get(key, default) != default:
            raise ModelError(f"A model with {key} {config[key]!r} is not supported.", hint=f"It must be {default!r}.")
    if config.get("quantization_config"):
        raise ModelError("A quantised Hugging Face model is not supported.", hint="Take the unquantised one or a GGUF.")


def _llama_config(config: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    scaling = config.get("rope_parameters") or config.get("rope_scaling")
    theta = config.get("rope_theta") or (scaling or {}).get("rope_theta") or 10_000.0
    ends = generation.get("eos_token_id", config.get("eos_token_id"))
    return ModelConfig(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        max_position_embeddings=config["max_position_embeddings"],
        rms_norm_eps=config["rms_norm_eps"],
        inv_freq=inverse_frequencies(head_dim, theta, scaling),
        eos_token_ids=tuple(ends) if isinstance(ends, list) else () if ends is None else (ends,),
        tied=config.get("tie_word_embeddings", False),
    )
