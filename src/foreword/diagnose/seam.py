"""The seam: the index of the first token id at which two prompts part. Ids decide; text only explains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foreword.diagnose.texts import common_prefix
from foreword.tokens.tokenizer import TokenIds, Tokenizer


@dataclass(frozen=True, slots=True)
class Chip:
    """One token: its id, and its text as ``repr`` so that spaces and invisible characters show."""

    id: int
    text: str


def shared_tokens(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix of two id sequences."""
    if isinstance(a, TokenIds) and isinstance(b, TokenIds):
        return common_prefix(a.buffer, b.buffer) >> 2
    return common_prefix(list(a), list(b))


def chips(ids: Sequence[int], start: int, end: int, tokenizer: Tokenizer) -> tuple[Chip, ...]:
    """The tokens of ``ids[start:end]``."""
    window = list(ids[max(0, start) : end])
    return tuple(Chip(i, repr(tokenizer.decode([i], skip_special_tokens=False))) for i in window)


def first_divergence(a: str, b: str, tokenizer: Tokenizer, window: int = 3) -> dict[str, Any]:
    """Where two texts part in token ids, with ``window`` tokens either side.

    The four numbers and contexts of the specification's example: ``shared_tokens``; ``shared_fraction``, of the longer
    side, to four places; ``a_context`` and ``b_context``, pairs of id and ``repr`` of its text.
    """
    ids_a, ids_b = tokenizer.encode(a), tokenizer.encode(b)
    index = shared_tokens(ids_a, ids_b)
    longest = max(len(ids_a), len(ids_b), 1)
    contexts = [
        [(chip.id, chip.text) for chip in chips(ids, index - window, index + window, tokenizer)]
        for ids in (ids_a, ids_b)
    ]
    return {
        "shared_tokens": index,
        "shared_fraction": round(index / longest, 4),
        "a_context": contexts[0],
        "b_context": contexts[1],
    }
