"""Token ids as a JSON array, quickly: for a long conversation this would cost more than everything else together."""

from __future__ import annotations

import functools

import msgspec
import numpy as np
from numpy.typing import NDArray

from foreword.tokens.tokenizer import TokenIds

FEW = 256
"""Up to so many ids are written one by one, without spaces."""
_WIDTH = 8
_TABLE = 1 << 18
"""Ids below this come from a table of their texts; it covers every vocabulary in use, and takes 2 MB."""


def ids_to_json(ids: TokenIds) -> bytes:
    """The ids as a JSON array.

    Long ones are padded with spaces to eight characters an id, which JSON ignores: so the text is one gather from a
    table, ten times as fast as formatting each number.
    """
    if len(ids) > FEW:
        try:
            texts = _texts().take(np.frombuffer(ids.buffer, np.uint32))
        except IndexError:
            pass  # an id that the table has not
        else:
            return b"[%b]" % texts.tobytes()[:-1]
    return msgspec.json.encode(memoryview(ids.buffer).cast("I").tolist())


@functools.cache
def _texts() -> NDArray[np.uint64]:
    """For each id its decimal text and a comma, padded on the left to eight characters, as one 64-bit word."""
    ids = np.arange(_TABLE, dtype=np.uint32)
    characters = np.full((_TABLE, _WIDTH), ord(" "), np.uint8)
    characters[:, -1] = ord(",")
    for place in range(_WIDTH - 1):
        rest = ids // 10**place
        shown = rest > 0 if place else slice(None)
        characters[shown, -2 - place] = ord("0") + rest[shown] % 10
    return characters.view(np.uint64).ravel()
