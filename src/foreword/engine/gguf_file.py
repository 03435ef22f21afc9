"""Read a llama-architecture GGUF file: metadata, where tensors lie, and their values in float32.

The header is read here because the gguf package takes seconds to turn the vocabulary's strings into objects that the
engine has no use for. Block formats that small models come in are unpacked here, straight from the mapped file; every
other format that the gguf package knows is left to it.
Source of the format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foreword.engine.rope import inverse_frequencies
from foreword.engine.weights import Array, ModelConfig, check_shape
from foreword.errors import ModelError

_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9
_MAX_COUNT = 1 << 24

_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies: ``offset`` bytes from the file's start; ``shape`` outermost first; ``kind`` is ggml's."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class _Cursor:
    """Reads little-endian values one after another; running past the end is a ModelError."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.position = 0

    def scalar(self, code: str) -> Any:
        layout = struct.Struct("<" + code)
        try:
            (value,) = layout.unpack_from(self.data, self.position)
        except struct.error:
            raise _damaged("it ends in the middle of its header") from None
        self.position += layout.size
        return value

    def count(self) -> int:
        value: int = self.scalar("Q")
        if value > _MAX_COUNT:
            raise _damaged(f"a count in its header is {value}")
        return value

    def string(self) -> str:
        return self.raw(self.count()).decode("utf-8", "replace")

    def raw(self, size: int) -> bytes:
        start, self.position = self.position, self.position + size
        if self.position > len(self.data):
            raise _damaged("it ends in the middle of its header")
        return self.data[start : self.position]

    def value(self, kind: int) -> Any:
        """A metadata value; an array of strings (the vocabulary) is passed over and gives its length."""
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item, count = self.scalar("I"), self.count()
            if item == _STRING:
                return self._skip_strings(count)
            return [self.value(item) for _ in range(count)]
        if kind not in _SCALARS:
            raise _damaged(f"metadata type {kind} does not exist")
        return self.scalar(_SCALARS[kind])

    def _skip_strings(self, count: int) -> int:
        unpack, data, position = struct.Struct("<Q").unpack_from, self.data, self.position
        try:
            for _ in range(count):
                position += 8 + unpack(data, position)[0]
        except struct.error:
            raise _damaged("it ends in the middle of its header") from None
        self.position = position
        return count


class GGUFFile:
    """An opened GGUF file; a TensorSource."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: tuple[Path, ...] = (path,)
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelError(f"{path} is not a GGUF file.", hint="Give a .gguf file or a Hugging Face folder.")
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._cursor = _Cursor(self._data)
        self._cursor.position = 4
        self.metadata, self.tensors = self._read_header()
        self.config = _config(self.metadata, self.tensors, self._rope_factors())

    def _read_header(self) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
        cursor = self._cursor
        version = cursor.scalar("I")
        if version not in (2, 3):
            raise ModelError(f"GGUF version {version} is not supported.", hint="Versions 2 and 3 are.")
        num_tensors, num_values = cursor.count(), cursor.count()
        metadata = {cursor.string(): cursor.value(cursor.scalar("I")) for _ in range(num_values)}
        infos = [(cursor.string(), *self._tensor_info()) for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", 32)
        start = -(-cursor.position // alignment) * alignment
        return metadata, {name: TensorInfo(shape, kind, start + offset) for name, shape, kind, offset in infos}

    def _tensor_info(self) -> tuple[tuple[int, ...], int, int]:
        cursor = self._cursor
        shape = tuple(cursor.scalar("Q") for _ in range(cursor.scalar("I")))[::-1]
        return shape, cursor.scalar("I"), cursor.scalar("Q")

    def _rope_factors(self) -> Array | None:
        """Divisors of the rotary frequencies; Llama 3.1 and later carry them as a tensor."""
        if "rope_freqs.weight" not in self.tensors:
            return None
        return self._values("rope_freqs.weight", self.tensors["rope_freqs.weight"])

    def read_into(self, name: str, out: Array) -> None:
        """Unpack a tensor into ``out``; q and k rows, which GGUF keeps in the order of its own RoPE, are put back."""
        own = _gguf_name(name)
        info = self.tensors.get(own)
        if info is None:
            raise ModelError(f"{self.path} has no tensor {own}.", hint="Fetch the model again.")
        check_shape(own, info.shape, out)
        values = self._values(own, info)
        if own.endswith(("attn_q.weight", "attn_k.weight")):
            half = self.config.head_dim // 2
            values = values.reshape(-1, half, 2, info.shape[-1]).swapaxes(1, 2)
        out.reshape(values.shape)[...] = values

    def _values(self, name: str, info: TensorInfo) -> Array:
        """The tensor in float32, in its own shape."""
        if info.kind not in _FORMATS:
            return _unpack_with_gguf(self._data, name, info)
        unpack, block_size, block_bytes = _FORMATS[info.kind]
        size = _checked_size(self._data, name, info, block_size, block_bytes)
        return unpack(np.frombuffer(self._data, np.uint8, size, info.offset)).reshape(info.shape)


def _damaged(how: str) -> ModelError:
    return ModelError(f"The GGUF file is damaged: {how}.", hint="Fetch the model again.")


def _checked_size(data: mmap.mmap, name: str, info: TensorInfo, block_size: int, block_bytes: int) -> int:
    """Bytes the tensor takes; raises ModelError if they are not all in the file."""
    size = prod(info.shape) // block_size * block_bytes
    if info.shape[-1] % block_size or info.offset + size > len(data):
        raise _damaged(f"tensor {name} does not fit in it")
    return size


def _gguf_name(name: str) -> str:
    """llama.cpp's name for a Hugging Face tensor name."""
    special = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in special:
        return special[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_NAMES[rest.removesuffix('.weight')]}.weight"


def _config(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], factors: Array | None) -> ModelConfig:
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise ModelError(
            f"Architecture {architecture!r} is not supported.", hint='The embedded engine runs "llama" models.'
        )
    if "token_embd.weight" not in tensors:
        raise _damaged("it has no token embedding")
    try:
        return _llama_config(metadata, tensors, factors)
    except KeyError as error:
        raise _damaged(f"its metadata lacks {error}") from None


def _llama_config(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], factors: Array | None) -> ModelConfig:
    vocab_size, hidden = tensors["token_embd.weight"].shape
    heads = metadata["llama.attention.head_count"]
    head_dim = metadata.get("llama.attention.key_length", hidden // heads)
    rotated = metadata.get("llama.rope.dimension_count", head_dim)
    inv_freq = inverse_frequencies(rotated, metadata.get("llama.rope.freq_base", 10_000.0))
    if factors is not None:
        inv_freq = tuple(f / float(d) for f, d in zip(inv_freq, factors, strict=True))
    ends = (metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot"))
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=metadata["llama.feed_forward_length"],
        num_layers=metadata["llama.block_count"],
        num_heads=heads,
        num_kv_heads=metadata.get("llama.attention.head_count_kv", heads),
        head_dim=head_dim,
        max_position_embeddings=metadata["llama.context_length"],
        rms_norm_eps=metadata["llama.attention.layer_norm_rms_epsilon"],
        inv_freq=inv_freq,
        eos_token_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
        tied="output.weight" not in tensors,
    )


def _unpack_with_gguf(data: mmap.mmap, name: str, info: TensorInfo) -> Array:
    """Any format the gguf package can unpack; imported late, since that takes a second."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType  # noqa: PLC0415 - see above
    from gguf.quants import dequantize  # noqa: PLC0415 - see above

    try:
        kind = GGMLQuantizationType(info.kind)
        block_size, block_bytes = GGML_QUANT_SIZES[kind]
        size = _checked_size(data, name, info, block_size, block_bytes)
        rows = np.frombuffer(data, np.uint8, size, info.offset).reshape(*info.shape[:-1], -1)
        values: Array = dequantize(rows, kind).astype(np.float32, copy=False)
    except (ValueError, KeyError, NotImplementedError):
        raise ModelError(
            f"Tensor {name} is in ggml format {info.kind}, which cannot be read.",
            hint="Take a file in F16, BF16, Q8_0, Q4_0, Q4_1 or a K-quant format.",
        ) from None
    return values.reshape(info.shape)


Bytes = NDArray[np.uint8]


def _f32(raw: Bytes) -> Array:
    return raw.view("<f4")


def _f16(raw: Bytes) -> Array:
    return raw.view("<f2").astype(np.float32)


def unpack_bf16(raw: Bytes) -> Array:
    """bfloat16 is the upper half of a float32."""
    return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q8_0(raw: Bytes) -> Array:
    """Blocks of 32: a float16 scale, 32 signed bytes."""
    blocks = raw.view(np.dtype([("scale", "<f2"), ("quants", "i1", 32)]))
    return blocks["quants"] * blocks["scale"].astype(np.float32)[:, None]


def _q4_0(raw: Bytes) -> Array:
    """Blocks of 32: a float16 scale, 16 bytes of two nibbles, each 8 too large; low nibbles are the first 16."""
    blocks = raw.view(np.dtype([("scale", "<f2"), ("nibbles", "u1", 16)]))
    return (_nibbles(blocks["nibbles"]) - np.float32(8)) * blocks["scale"].astype(np.float32)[:, None]


def _q4_1(raw: Bytes) -> Array:
    """Blocks of 32: a float16 scale, a float16 minimum, 16 bytes of two nibbles; low nibbles are the first 16."""
    blocks = raw.view(np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("nibbles", "u1", 16)]))
    values = _nibbles(blocks["nibbles"])
    values *= blocks["scale"].astype(np.float32)[:, None]
    values += blocks["minimum"].astype(np.float32)[:, None]
    return values


def _nibbles(packed: Bytes) -> Array:
    values = np.empty((len(packed), 32), np.float32)
    values[:, :16] = packed & 15
    values[:, 16:] = packed >> 4
    return values


_FORMATS: dict[int, tuple[Callable[[Bytes], Array], int, int]] = {
    0: (_f32, 1, 4),
    1: (_f16, 1, 2),
    2: (_q4_0, 32, 18),
    3: (_q4_1, 32, 20),
    8: (_q8_0, 32, 34),
    30: (unpack_bf16, 1, 2),
}
"""ggml type -> how to unpack it, values in a block, bytes in a block."""
