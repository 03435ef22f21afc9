"""Loading: every format gives the tensors that its own library reads, and damage is a typed error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from foreword.engine.gguf_file import GGUFFile
from foreword.engine.kv_cache import KVCache
from foreword.engine.llm import LLM
from foreword.engine.model import Chunk, LlamaModel
from foreword.engine.rope import inverse_frequencies
from foreword.engine.threads import ComputeThreads
from foreword.engine.weights import Weights, load_weights, open_model
from foreword.errors import ModelError, ModelNotFound

Q = gguf.GGMLQuantizationType

WIDE = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
"""A shape whose rows are whole quantisation blocks."""


@pytest.fixture(scope="module")
def wide(make_tiny: Callable[..., Any]) -> Any:
    """A tiny model that can be quantised."""
    return make_tiny(**WIDE)


def interleave(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Put q or k rows in the order GGUF keeps them."""
    return weight.reshape(heads, 2, -1, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, model: Any, kind: Any, **metadata: Any) -> Path:
    """The model as a GGUF file with its matrices in one format."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_token_list([f"token{index}" for index in range(config["vocab_size"])])
    for key, value in metadata.items():
        writer.add_uint32(key.replace("__", "."), value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, original in model.tensors.items():
        value = original
        for projection, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if projection in name:
                value = interleave(value, config[heads])
        own = names.get_name(name, try_suffixes=(".weight",))
        wanted = kind if value.ndim == 2 else Q.F32
        assert own is not None
        writer.add_tensor(own, gguf.quants.quantize(value, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def flat(weights: Weights) -> list[NDArray[np.float32]]:
    """All arrays."""
    layers = [getattr(layer, name) for layer in weights.layers for name in layer.__dataclass_fields__]
    return [weights.embedding, weights.norm, weights.lm_head, *layers]


def assert_equal(actual: Weights, expected: Weights) -> None:
    """The same weights to the bit."""
    for a, b in zip(flat(actual), flat(expected), strict=True):
        np.testing.assert_array_equal(a, b)


def through(value: NDArray[np.float32], kind: Any) -> NDArray[np.float32]:
    """What the gguf package reads back after quantising."""
    back: NDArray[np.float32] = gguf.quants.dequantize(gguf.quants.quantize(value, kind), kind).reshape(value.shape)
    return back


@pytest.mark.parametrize("kind", [Q.F32, Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1], ids=lambda k: k.name)
def test_gguf_equals_the_gguf_package(wide: Any, make_tiny: Any, tmp_path: Path, kind: Any) -> None:
    """Every format is unpacked to the values the gguf package gives, q and k rows in Hugging Face's order."""
    actual = load_weights(open_model(write_gguf(tmp_path / "model.gguf", wide, kind)))
    expected = {name: through(value, kind) if value.ndim == 2 else value for name, value in wide.tensors.items()}
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text(json.dumps(wide.config))
    save_file(expected, tmp_path / "folder" / "model.safetensors")
    assert_equal(actual, load_weights(open_model(tmp_path / "folder")))


def test_gguf_configuration_equals_the_folders(wide: Any, tmp_path: Path) -> None:
    """Both forms of one model state one configuration."""
    ours = open_model(write_gguf(tmp_path / "model.gguf", wide, Q.F32)).config
    theirs = open_model(wide.path).config
    assert ours.rms_norm_eps == pytest.approx(theirs.rms_norm_eps)
    assert {f: getattr(ours, f) for f in ours.__dataclass_fields__ if f != "rms_norm_eps"} == {
        f: getattr(theirs, f) for f in theirs.__dataclass_fields__ if f != "rms_norm_eps"
    }


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_safetensors_dtypes(tiny: Any, tmp_path: Path, dtype: Any) -> None:
    """float16 and float32 folders load to float32."""
    (tmp_path / "config.json").write_text(json.dumps(tiny.config))
    save_file({name: value.astype(dtype) for name, value in tiny.tensors.items()}, tmp_path / "model.safetensors")
    embedding = load_weights(open_model(tmp_path)).embedding
    np.testing.assert_array_equal(embedding, tiny.tensors["model.embed_tokens.weight"].astype(dtype).astype(np.float32))


def test_bfloat16_shards(tiny: Any, tmp_path: Path) -> None:
    """A sharded bfloat16 folder loads to the upper halves of the floats."""
    (tmp_path / "config.json").write_text(json.dumps(tiny.config))
    names = sorted(tiny.tensors)
    for shard, part in enumerate((names[:10], names[10:])):
        data, header, at = b"", {}, 0
        for name in part:
            value = (tiny.tensors[name].view(np.uint32) >> 16).astype(np.uint16)
            span = [at, at + value.nbytes]
            header[name] = {"dtype": "BF16", "shape": list(value.shape), "data_offsets": span}
            data, at = data + value.tobytes(), span[1]
        text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
        file = tmp_path / f"model-0000{shard + 1}-of-00002.safetensors"
        file.write_bytes(len(text).to_bytes(8, "little") + text + data)
    original = tiny.tensors["model.norm.weight"]
    expected = (original.view(np.uint32) >> 16 << 16).view(np.float32)
    np.testing.assert_array_equal(load_weights(open_model(tmp_path)).norm, expected)


def test_end_tokens_come_from_the_generation_config(tiny: Any, make_tiny: Any) -> None:
    """Several end-of-sequence ids in generation_config.json take precedence over config.json's."""
    other = make_tiny()
    (other.path / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    assert open_model(other.path).config.eos_token_ids == (2, 7)
    assert open_model(tiny.path).config.eos_token_ids == (2,)


def test_llama3_rotary_scaling() -> None:
    """Short waves stay, long ones are slowed by the factor, those between are blended (values: transformers 5)."""
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    plain = inverse_frequencies(64, 500000.0)
    scaled = inverse_frequencies(64, 500000.0, scaling)
    assert scaled[:15] == plain[:15]
    np.testing.assert_allclose(np.array(plain[18:]) / np.array(scaled[18:]), 32.0)
    assert plain[16] / 32 < scaled[16] < plain[16]


def test_unknown_rotary_scaling_is_refused() -> None:
    """A scaling that is not computed is named, not ignored."""
    with pytest.raises(ModelError, match="'yarn' is not supported"):
        inverse_frequencies(64, 10000.0, {"rope_type": "yarn", "factor": 2.0})


def test_scaled_rotation_in_the_decoder(make_tiny: Any) -> None:
    """Linear scaling by 2 equals dividing every frequency by 2."""
    scaled = make_tiny(rope_scaling={"type": "linear", "factor": 2.0})
    source = open_model(scaled.path)
    threads = ComputeThreads(1)
    model = LlamaModel(load_weights(source), KVCache(source.config, 8, 4), threads, 64)
    assert source.config.inv_freq == tuple(f / 2 for f in inverse_frequencies(8, 10000.0))
    assert np.isfinite(model.forward([Chunk([5, 6, 7], 0, [0], wants_logits=True)])).all()
    threads.close()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model_type": "gpt2"}, "'gpt2' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"attention_bias": True}, "attention_bias True"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "4 attention heads cannot share 3"),
        ({"vocab_size": 98}, "has shape"),
        ({"num_hidden_layers": 4}, "has no tensor"),
        ({"rms_norm_eps": None}, "config.json lacks 'rms_norm_eps'"),
    ],
)
def test_unsupported_folders_are_named(tiny: Any, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """What the decoder does not compute, or what does not fit together, is a ModelError that says so."""
    config = {key: value for key, value in (tiny.config | changes).items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(tiny.path / "model.safetensors")
    with pytest.raises(ModelError, match=message):
        LLM(tmp_path)


def test_missing_models_are_not_found(tmp_path: Path) -> None:
    """No such path, and a folder without weights, are ModelNotFound."""
    with pytest.raises(ModelNotFound, match="no model at"):
        open_model(tmp_path / "nothing")
    with pytest.raises(ModelNotFound, match=r"no \*\.safetensors"):
        open_model(tmp_path)


@pytest.mark.parametrize("keep", [0, 3, 7, 8, 20, 100, 1000, -1], ids=str)
def test_cut_safetensors_are_damaged(tiny: Any, tmp_path: Path, keep: int) -> None:
    """A file cut anywhere is a ModelError, never a crash or zeros."""
    (tmp_path / "config.json").write_text(json.dumps(tiny.config))
    (tmp_path / "model.safetensors").write_bytes((tiny.path / "model.safetensors").read_bytes()[:keep])
    with pytest.raises(ModelError, match="damaged"):
        load_weights(open_model(tmp_path))


@pytest.mark.parametrize("keep", [0, 3, 5, 20, 100, 700, 3000, -1], ids=str)
def test_cut_gguf_is_damaged(wide: Any, tmp_path: Path, keep: int) -> None:
    """A GGUF file cut anywhere is a ModelError."""
    whole = write_gguf(tmp_path / "model.gguf", wide, Q.Q8_0)
    (tmp_path / "cut.gguf").write_bytes(whole.read_bytes()[:keep])
    with pytest.raises(ModelError):
        load_weights(open_model(tmp_path / "cut.gguf"))


def test_other_architectures_in_gguf_are_named(tmp_path: Path) -> None:
    """A GGUF of another architecture is refused by name."""
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="'mamba' is not supported"):
        GGUFFile(tmp_path / "other.gguf")
