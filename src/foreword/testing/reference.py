"""The ids a text must have, by asking the library that defines them and nothing of Foreword's."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import tiktoken
from tokenizers import Tokenizer

from foreword.testing.tokenizer_parts import CL100K, O200K, QWEN


class Encode(Protocol):
    """Text to ids."""

    def __call__(self, text: str, *, add_special_tokens: bool) -> Sequence[int]:
        """The library's own answer."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A tokenizer as its own library runs it.

    Attributes:
        path: what ``load_tokenizer`` is given for the same tokenizer.
        encode: the library's own answer.
        added_tokens: contents of its added and special tokens.
        options: what else ``load_tokenizer`` is given: what a rank file does not say.
    """

    name: str
    path: Path
    encode: Encode
    added_tokens: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


def load_reference(path: Path, name: str = "") -> Reference:
    """The reference for a tokenizer.json folder, a .tiktoken rank file, or a tekken .json file."""
    if path.is_dir():
        return _hugging_face(path, name or path.name)
    if path.suffix == ".tiktoken":
        return _tiktoken(path, name or path.stem)
    return _tekken(path, name or path.stem)


def _hugging_face(folder: Path, name: str) -> Reference:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def encode(text: str, *, add_special_tokens: bool) -> Sequence[int]:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    added = sorted(tokenizer.get_added_tokens_decoder().items())
    return Reference(name, folder, encode, tuple(token.content for _, token in added))


@dataclass(frozen=True, slots=True)
class Encoding:
    """What a rank file does not say: the pattern, and the special tokens with their ids."""

    pattern: str
    special_tokens: Mapping[str, int]


def _qwen_tokens(first: int) -> dict[str, int]:
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205)))
    return {name: first + number for number, name in enumerate(names)}


_CL100K_SPECIAL = ("<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
ENCODINGS: Mapping[str, Encoding] = MappingProxyType(
    {
        "cl100k_base": Encoding(
            CL100K, {t: 100257 + n for n, t in enumerate(_CL100K_SPECIAL)} | {"<|endofprompt|>": 100276}
        ),
        "o200k_base": Encoding(O200K, {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}),
        "qwen": Encoding(QWEN, _qwen_tokens(151643)),
    }
)


def _tiktoken(file: Path, name: str) -> Reference:
    known = ENCODINGS[file.stem]
    lines = (line.split() for line in file.read_bytes().splitlines() if line)
    encoding = tiktoken.Encoding(
        file.stem,
        pat_str=known.pattern,
        mergeable_ranks={base64.b64decode(token): int(rank) for token, rank in lines},
        special_tokens=dict(known.special_tokens),
    )

    def encode(text: str, *, add_special_tokens: bool) -> Sequence[int]:
        del add_special_tokens  # tiktoken adds none
        return encoding.encode(text, allowed_special="all")

    options = {"pattern": known.pattern, "special_tokens": known.special_tokens}
    return Reference(name, file, encode, tuple(known.special_tokens), options)


def _tekken(file: Path, name: str) -> Reference:
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer  # noqa: PLC0415 - an extra of ours

    tekken: Any = Tekkenizer.from_file(str(file))

    def encode(text: str, *, add_special_tokens: bool) -> Sequence[int]:
        return list(tekken.encode(text, bos=add_special_tokens, eos=False))

    special = json.loads(file.read_text(encoding="utf-8")).get("special_tokens") or ()
    return Reference(name, file, encode, tuple(token["token_str"] for token in special) or ("<s>", "</s>", "[INST]"))
