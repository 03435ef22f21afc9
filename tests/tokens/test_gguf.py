"""The tokenizer inside a GGUF file."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from foreword.errors import TokenizerError
from foreword.testing.gguf_files import TINY_TOKENIZER, gguf_bytes
from foreword.testing.material import tokenizer_path
from foreword.testing.texts import TextMaker
from foreword.tokens.gguf import read_gguf_metadata, tokenizer_files


def test_metadata_comes_back_as_written(tmp_path: Path) -> None:
    """Every kind of value is read: numbers, booleans, strings and arrays of them."""
    metadata = {"a": 1, "b": True, "c": 1.5, "d": "ü", "e": ["x", "yy"], "f": [1, 2, 3]}
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_bytes(metadata))
    assert read_gguf_metadata(path) == metadata


def test_the_tokenizer_encodes_as_its_parts_say(tmp_path: Path) -> None:
    """The rebuilt tokenizer.json loads, and its vocabulary, merges and added tokens are the file's."""
    files = tokenizer_files(dict(TINY_TOKENIZER))
    tokenizer = tokenizers.Tokenizer.from_str(files["tokenizer.json"])
    config = json.loads(files["tokenizer_config.json"])

    assert tokenizer.encode("abc<|end|>").ids == [4, 3, 0]
    assert tokenizer.decode([4, 3]) == "abc"
    assert config["chat_template"] == TINY_TOKENIZER["tokenizer.chat_template"]
    assert (config["eos_token"], config["model_max_length"]) == ("<|end|>", 64)


def as_gguf(definition: dict[str, Any], pre: str, bos: str) -> dict[str, Any]:
    """The metadata that llama.cpp's converter writes for a tokenizer.json: tokens by id, their types, the merges."""
    tokens: dict[int, tuple[str, int]] = {index: (token, 1) for token, index in definition["model"]["vocab"].items()}
    for row in definition["added_tokens"]:
        tokens[row["id"]] = (row["content"], 3 if row["special"] else 4)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in definition["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [tokens[index][0] for index in range(len(tokens))],
        "tokenizer.ggml.token_type": [tokens[index][1] for index in range(len(tokens))],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": next(index for index, (token, _) in tokens.items() if token == bos),
    }


@pytest.mark.parametrize(
    "name,pre,bos",
    [
        pytest.param("llama3_1", "llama-bpe", "<|begin_of_text|>", marks=pytest.mark.material("llama3_1")),
        pytest.param("qwen3", "qwen2", "<|endoftext|>", marks=pytest.mark.material("qwen3")),
    ],
)
def test_a_published_tokenizer_survives_the_way_through_gguf(name: str, pre: str, bos: str) -> None:
    """Rebuilt from what llama.cpp keeps of it, a tokenizer gives the ids of the original, special tokens and all."""
    published = (tokenizer_path(name) / "tokenizer.json").read_text()
    rebuilt = tokenizer_files(as_gguf(json.loads(published), pre, bos))["tokenizer.json"]
    expected, actual = tokenizers.Tokenizer.from_str(published), tokenizers.Tokenizer.from_str(rebuilt)

    specials = [token.content for token in expected.get_added_tokens_decoder().values()]
    maker = TextMaker(17, specials)
    for text in [maker.text() for _ in range(100)]:
        for add_special_tokens in (False, True):
            ids = actual.encode(text, add_special_tokens=add_special_tokens).ids
            assert ids == expected.encode(text, add_special_tokens=add_special_tokens).ids, text
        assert actual.decode(ids) == expected.decode(ids)


def test_an_unknown_pipeline_is_refused_rather_than_guessed() -> None:
    """A tokenizer whose rules are not known exactly is an error that says what to do."""
    with pytest.raises(TokenizerError, match=r"gpt2/tekken\) cannot be rebuilt exactly. Give .* --tokenizer-path"):
        tokenizer_files({**TINY_TOKENIZER, "tokenizer.ggml.pre": "tekken"})


def test_missing_parts_are_an_error() -> None:
    """A file without its token list is refused."""
    metadata = {key: value for key, value in TINY_TOKENIZER.items() if key != "tokenizer.ggml.tokens"}
    with pytest.raises(TokenizerError, match="incomplete"):
        tokenizer_files(metadata)


@pytest.mark.parametrize(
    "data,problem",
    [
        (b"", "it ends too early"),
        (b"PK\3\4" + bytes(40), "it does not start with GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9 is not 2 or 3"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "more than the file can hold"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**50), "more than the file can hold"),
        (gguf_bytes(TINY_TOKENIZER)[:-20], "it ends too early"),
        (b"GGUF" + struct.pack("<IQQQcI", 3, 0, 1, 1, b"k", 77), "value type 77 is unknown"),
    ],
)
def test_a_broken_file_is_named(data: bytes, problem: str, tmp_path: Path) -> None:
    """Whatever is wrong with the bytes is a TokenizerError that says so, and takes no memory to find out."""
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(TokenizerError, match="is not a whole GGUF file") as caught:
        read_gguf_metadata(path)
    assert problem in str(caught.value)


@given(st.integers(0, len(gguf_bytes(TINY_TOKENIZER)) - 1), st.integers(0, 255))
def test_any_changed_byte_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int
) -> None:
    """Corruption ends in metadata or in a TokenizerError, never in anything else."""
    data = bytearray(gguf_bytes(TINY_TOKENIZER))
    data[position] = value
    path = tmp_path_factory.getbasetemp() / "changed.gguf"
    path.write_bytes(data)
    try:
        read_gguf_metadata(path)
    except TokenizerError:
        return
