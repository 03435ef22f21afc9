"""The parts of a tokenizer, in ``tokenizer.json``'s own words: patterns, normalizers, pre-tokenizers, added tokens."""

from __future__ import annotations

from typing import Any, Final

Json = dict[str, Any]

CL100K: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN: Final = CL100K.replace(r"\p{N}{1,3}", r"\p{N}")


def added(content: str, **flags: bool) -> Json:
    """An added token: special and not normalized unless the flags say otherwise."""
    return {"content": content, "special": True, "normalized": False} | flags


CHAT: Final = tuple(added(c) for c in ("<|im_start|>", "<|im_end|>", "<s>", "</s>", "<pad>"))


def sequence(key: str, *parts: Json) -> Json:
    """Several normalizers (key "normalizers") or pre-tokenizers (key "pretokenizers") one after another."""
    return {"type": "Sequence", key: list(parts)}


def byte_level(*, prefix_space: bool = False, regex: bool = True) -> Json:
    """The GPT-2 pre-tokenizer, or with ``regex`` off only its byte alphabet."""
    return {"type": "ByteLevel", "add_prefix_space": prefix_space, "trim_offsets": True, "use_regex": regex}


def split(regex: str, behavior: str = "Isolated", *, invert: bool = False) -> Json:
    """A regex pre-tokenizer."""
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}


def split_bytes(regex: str) -> Json:
    """The cl100k shape: split by the regex, then only the byte alphabet."""
    return sequence("pretokenizers", split(regex), byte_level(regex=False))


def metaspace(scheme: str, *, split_words: bool = True) -> Json:
    """SentencePiece's space symbol; scheme "always", "first" or "never"."""
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split_words}


def replace(pattern: str, content: str) -> Json:
    """A normalizer that replaces a string."""
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def bert_normalizer(*, lowercase: bool = True) -> Json:
    """BERT's normalizer."""
    return {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
            "lowercase": lowercase}  # fmt: skip


def truncate(length: int, direction: str = "Right", stride: int = 0) -> Json:
    """Truncation as tokenizer.json asks for it."""
    return {"direction": direction, "max_length": length, "strategy": "LongestFirst", "stride": stride}


def pad(strategy: str | Json, direction: str = "Right", multiple: int | None = None) -> Json:
    """Padding as tokenizer.json asks for it: strategy "BatchLongest" or {"Fixed": n}."""
    return {"strategy": strategy, "direction": direction, "pad_to_multiple_of": multiple, "pad_id": 0,
            "pad_type_id": 0, "pad_token": "<pad>"}  # fmt: skip


NFC: Final[Json] = {"type": "NFC"}
LEGACY: Final = sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁"))
BERT: Final[Json] = {"type": "BertPreTokenizer"}
