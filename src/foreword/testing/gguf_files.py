"""Small GGUF files: metadata only, for whatever reads the head of one."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

TINY_TOKENIZER: Mapping[str, Any] = {
    "general.architecture": "llama",
    "llama.context_length": 64,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["<|end|>", "a", "b", "c", "ab", "Ġ"],
    "tokenizer.ggml.token_type": [3, 1, 1, 1, 1, 1],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 0,
    "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}",
}
"""Metadata of a whole tokenizer that knows a, b, c and the space."""


def gguf_bytes(metadata: Mapping[str, Any]) -> bytes:
    """A GGUF file (version 3) of these keys and no tensors; ints become uint32, floats float32."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(metadata))
    return head + b"".join(_string(key) + _typed(value) for key, value in metadata.items())


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _typed(value: Any) -> bytes:
    kind, data = _encode(value)
    return struct.pack("<I", kind) + data


def _encode(value: Any) -> tuple[int, bytes]:
    """Value type and bytes, as in the format's table."""
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, _string(value)
    return 9, _array(value)


def _array(values: Sequence[Any]) -> bytes:
    items = [_encode(value) for value in values]
    kind = items[0][0] if items else 8
    return struct.pack("<IQ", kind, len(items)) + b"".join(data for _, data in items)
