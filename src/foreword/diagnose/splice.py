"""Encode texts that are nearly alike: each piece between certified cuts once, whatever text it turns up in.

Many mixtures of two requests are encoded for one verdict, and they differ in a sentence. The cuts are those the token
cache is certified by (foreword.tokens.boundaries), so the ids are those of the whole text.
"""

from __future__ import annotations

from typing import Any

from foreword.tokens.boundaries import PLAIN, START
from foreword.tokens.tokenizer import TokenIds, Tokenizer

MAX_PIECES = 65_536


class PieceEncoder:
    """Encodes like its tokenizer and remembers pieces. For one verdict or one log, by one thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer: Any = tokenizer
        boundaries = getattr(tokenizer, "boundaries", None)
        self._boundaries = boundaries if boundaries is not None and boundaries.certified else None
        self._pieces: dict[str, bytes] = {}

    def encode(self, text: str) -> TokenIds:
        """The tokenizer's ids for the text, no special tokens added."""
        if self._boundaries is None:
            return TokenIds.of(self._tokenizer.encode(text))
        self._tokenizer.check(text)
        if len(self._pieces) > MAX_PIECES:
            self._pieces.clear()
        cuts = [START, *self._boundaries.cuts(text)]
        ends = [cut.resume if cut.token == PLAIN else cut.end for cut in cuts[1:]]
        parts = [text[cut.resume : end] for cut, end in zip(cuts, [*ends, len(text)], strict=True)]
        known = self._pieces
        new = list({part for part in parts if part not in known})
        if new:
            known.update(zip(new, self._tokenizer.encode_core(new), strict=True))
        core = b"".join(
            known[part] if cut.token == PLAIN else known[part][4:] for cut, part in zip(cuts, parts, strict=True)
        )
        return TokenIds(self._tokenizer.assemble(core, add_special_tokens=False))
