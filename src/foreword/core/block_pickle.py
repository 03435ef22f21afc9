"""The bytes ``pickle.dumps((parent_hash, token_ids, extra_keys), protocol=5)`` gives, made for a whole run of blocks.

vLLM's default block hash is SHA-256 over that pickle, so its layout is part of the hash. For one block it is::

    80 05                   protocol 5
    95 <8 bytes>            frame; its length, little endian
    43 <1 byte> <parent>    SHORT_BINBYTES, the parent's hash
    94 28                   memoize the parent; mark
    4B nn | 4D nnnn | 4A nnnnnnnn ...   each id in 1, 2 or 4 bytes, little endian
    74 94                   the marked ids are a tuple; memoize it
    4E | <extra keys>       None, or the pickled keys
    87 94 2E                a tuple of three; memoize; stop

Only the ids change from block to block, and pickle is good at ids: one call writes those of many blocks, a regular
expression finds where each block begins, and the rest is constant. Whatever has another layout (ids over 31 bits, tiny
or huge blocks) goes through pickle itself, block by block.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

PICKLE_PROTOCOL = 5

MAX_RUN_IDS = 8192
"""Of 5 bytes at most: one frame, which ends at 64 KiB, holds them, so no frame header comes between two ids."""

_MAX_END = 8192  # of the keys' bytes, for the same reason
_IDS_BEGIN = 12  # protocol, frame header and mark come before the first id of a pickled tuple ...
_IDS_END = 3  # ... and tuple, memoize and stop after the last
_ID = rb"(?:M..|J....|K.)"


@lru_cache(maxsize=32)
def _block_pattern(block_size: int) -> re.Pattern[bytes]:
    """Matches the ids of one block. Written out rather than counted: the engine is a third faster that way."""
    return re.compile(_ID * block_size, re.DOTALL)


def is_regular(block_size: int) -> bool:
    """Whether blocks of this size have the layout above: shorter tuples have no mark, huge ones are not worth it."""
    return 4 <= block_size <= MAX_RUN_IDS


def split_ids(token_ids: Sequence[int], block_size: int) -> list[bytes] | None:
    """The pickled ids of each block; None when some id is not a plain int of 31 bits.

    Args:
        token_ids: whole blocks, ``MAX_RUN_IDS`` ids at most.
        block_size: a regular one.
    """
    data = pickle.dumps(tuple(token_ids), protocol=PICKLE_PROTOCOL)
    blocks = _block_pattern(block_size).findall(data, _IDS_BEGIN, len(data) - _IDS_END)
    # An id of another layout leaves a gap between two matches. Without gaps, the matches are what pickle wrote.
    return blocks if sum(map(len, blocks)) == len(data) - _IDS_BEGIN - _IDS_END else None


@dataclass(frozen=True, slots=True)
class Frame:
    """What surrounds the ids: ``heads[len(ids)] + parent_hash + begin + ids + end`` is the pickle of a block."""

    heads: list[bytes]
    begin: bytes
    end: bytes


@lru_cache(maxsize=64)
def frame(block_size: int, hash_size: int, extra_keys: tuple[Any, ...] | None) -> Frame | None:
    """The frame of regular blocks with these extra keys; None when the keys are too long for it."""
    model = pickle.dumps((bytes(hash_size), (0, 0, 0, 0), extra_keys), protocol=PICKLE_PROTOCOL)
    begin, end = b"\x94(", model.partition(b"K\0K\0K\0K\0")[2]
    if len(end) > _MAX_END:
        return None
    fixed = 2 + hash_size + len(begin) + len(end)
    heads = [
        b"\x80\x05\x95" + (fixed + ids).to_bytes(8, "little") + b"C" + bytes([hash_size])
        for ids in range(5 * block_size + 1)
    ]
    return Frame(heads, begin, end)
