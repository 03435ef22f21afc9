"""The tokenizer inside a GGUF file, turned back into the Hugging Face files it was made from.

Only the metadata at the head of the file is read, by a bounded reader of the format (the `gguf` package maps every
tensor first: seconds, where this takes a tenth). Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, BinaryIO

from foreword.errors import TokenizerError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_KEYS = 100_000
_CONTROL, _USER_DEFINED = 3, 4
"""Token types that are added tokens; of these, control tokens are special."""


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """Every metadata key of a GGUF file; raises TokenizerError when it is none or is cut short."""
    try:
        with path.open("rb") as file:
            return _Reader(file, path.stat().st_size).metadata()
    except OSError as error:
        raise TokenizerError(f"Cannot read {path}: {error.strerror}.", path=str(path)) from error
    except (struct.error, UnicodeDecodeError, _Malformed) as error:
        raise TokenizerError(
            f"{path} is not a whole GGUF file ({error}).", hint="Fetch it again.", path=str(path)
        ) from error


class _Malformed(Exception):
    """The bytes are not what the format says."""


class _Reader:
    """Reads the head of one file; no length in it is trusted beyond the file's own size."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file = file
        self.size = size

    def metadata(self) -> dict[str, Any]:
        if self.read(4) != b"GGUF":
            raise _Malformed("it does not start with GGUF")
        version = self.scalar("I")
        if version not in (2, 3):
            raise _Malformed(f"version {version} is not 2 or 3")
        self.scalar("Q")  # tensors
        keys = self.count(_MAX_KEYS)
        return {self.string(): self.value(self.scalar("I")) for _ in range(keys)}

    def value(self, kind: int, *, nested: bool = False) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY and not nested:
            return self.array()
        raise _Malformed(f"value type {kind} is unknown")

    def array(self) -> list[Any]:
        kind, length = self.scalar("I"), self.count(self.size)
        if kind in _SCALARS:
            code = _SCALARS[kind]
            return list(struct.unpack(f"<{length}{code}", self.read(length * struct.calcsize(f"<{code}"))))
        return [self.value(kind, nested=True) for _ in range(length)]

    def string(self) -> str:
        return self.read(self.count(self.size)).decode()

    def count(self, limit: int) -> int:
        number: int = self.scalar("Q")
        if number > limit:
            raise _Malformed(f"a length of {number} is more than the file can hold")
        return number

    def scalar(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.read(struct.calcsize(f"<{code}")))[0]

    def read(self, length: int) -> bytes:
        if length > self.size or len(data := self.file.read(length)) != length:
            raise _Malformed("it ends too early")
        return data


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, _byte_level(use_regex=False)]}


_DIGITS = {"type": "Digits", "individual_digits": True}
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

_PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "gpt-2": _byte_level(use_regex=True),
    "smollm": {"type": "Sequence", "pretokenizers": [_DIGITS, _byte_level(use_regex=True)]},
    "llama-bpe": _split(_WORDS + r"\p{N}{1,3}" + _REST),
    "qwen2": _split(_WORDS + r"\p{N}" + _REST),
}
"""``tokenizer.ggml.pre`` -> the pre-tokenizer of the tokenizer.json it was made from."""


def tokenizer_files(metadata: dict[str, Any]) -> dict[str, str]:
    """File name -> text of tokenizer.json and tokenizer_config.json.

    For SmolLM2 the tokenizer.json is byte for byte the published one. Raises TokenizerError for a tokenizer whose
    pipeline is not known to be rebuilt exactly.
    """
    model, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "gpt-2")
    if model != "gpt2" or pre not in _PRE_TOKENIZERS:
        raise TokenizerError(
            f"This GGUF file's tokenizer ({model}/{pre}) cannot be rebuilt exactly.",
            hint="Give the model's published tokenizer with --tokenizer-path.",
            model=model,
            pre=pre,
        )
    try:
        added = _added_tokens(metadata)
        files = {
            "tokenizer.json": _definition(metadata, pre, added),
            "tokenizer_config.json": _settings(metadata, added),
        }
    except (KeyError, IndexError, TypeError) as error:
        raise TokenizerError(f"This GGUF file's tokenizer is incomplete ({error}).", hint="Fetch it again.") from error
    return {name: json.dumps(content, ensure_ascii=False, indent=2) for name, content in files.items()}


def _added_tokens(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": index, "content": tokens[index], **flags, "special": kind == _CONTROL}
        for index, kind in enumerate(types)
        if kind in (_CONTROL, _USER_DEFINED)
    ]


def _definition(metadata: dict[str, Any], pre: str, added: list[dict[str, Any]]) -> dict[str, Any]:
    vocab = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    if pre in ("llama-bpe", "qwen2"):  # their files keep added tokens out of the model's vocabulary
        vocab = {token: index for token, index in vocab.items() if index not in {row["id"] for row in added}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": _PRE_TOKENIZERS[pre],
        "post_processor": _post_processor(metadata) if pre == "llama-bpe" else None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre == "llama-bpe",
            "vocab": vocab,
            "merges": metadata["tokenizer.ggml.merges"],
        },
    }


def _post_processor(metadata: dict[str, Any]) -> dict[str, Any] | None:
    """Llama 3's: the beginning-of-sequence token in front of every sequence."""
    if not metadata.get("tokenizer.ggml.add_bos_token", True):
        return None
    bos_id = metadata["tokenizer.ggml.bos_token_id"]
    bos = metadata["tokenizer.ggml.tokens"][bos_id]

    def part(sequence: str, type_id: int) -> list[dict[str, Any]]:
        return [
            {"SpecialToken": {"id": bos, "type_id": type_id}},
            {"Sequence": {"id": sequence, "type_id": type_id}},
        ]

    return {
        "type": "TemplateProcessing",
        "single": part("A", 0),
        "pair": part("A", 0) + part("B", 1),
        "special_tokens": {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}},
    }


def _settings(metadata: dict[str, Any], added: list[dict[str, Any]]) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    special = {
        name: tokens[index]
        for name, key in names.items()
        if (index := metadata.get(f"tokenizer.ggml.{key}_token_id")) is not None
    }
    return {
        "added_tokens_decoder": {
            str(row["id"]): {key: value for key, value in row.items() if key != "id"} for row in added
        },
        **special,
        "chat_template": metadata.get("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.get(f"{metadata.get('general.architecture')}.context_length"),
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
