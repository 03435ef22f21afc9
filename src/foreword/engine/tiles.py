"""Cut the rows of a step into tiles, and each tile into the segments that attend together."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from foreword.engine.kernels import ATTENTION_ROWS, FEW_ROWS
from foreword.engine.kv_cache import Context, KVCache, Slots

TILE_ROWS = 256
"""Rows in a tile at most: enough for OpenBLAS's full speed, few enough for a core's cache to hold what they are."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence to compute: positions ``start`` onward, their KV to be kept in ``block_table``.

    ``wants_logits`` says that the logits after the last token are asked for.
    """

    token_ids: SequenceOf[int]
    start: int
    block_table: SequenceOf[int]
    wants_logits: bool

    @property
    def stop(self) -> int:
        """The position after the last token."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows first..last of a tile that belong to one sequence; ``context`` ends with the last of them."""

    first: int
    last: int
    context: Context


@dataclass(frozen=True, slots=True)
class Plan:
    """The rows of all chunks, one after another, and how they are cut.

    Attributes:
        token_ids, positions, slots: of every row.
        tiles: the row ranges, the last first: it attends to most.
        final: the rows whose logits are asked for.
    """

    chunks: SequenceOf[Chunk]
    token_ids: Slots
    positions: Slots
    slots: Slots
    tiles: SequenceOf[tuple[int, int]]
    final: SequenceOf[int]


def plan(chunks: SequenceOf[Chunk], kv_cache: KVCache, num_threads: int) -> Plan:
    """Lay the chunks' rows out and cut them evenly: one tile for few rows, else at least one for each thread."""
    rows = sum(len(chunk.token_ids) for chunk in chunks)
    count = 1 if rows < FEW_ROWS else max(num_threads, -(-rows // TILE_ROWS))
    tiles = list(pairwise(rows * index // count for index in range(count + 1)))
    ends = np.cumsum([len(chunk.token_ids) for chunk in chunks]).tolist()
    return Plan(
        chunks=chunks,
        token_ids=np.concatenate([np.asarray(chunk.token_ids, np.int64) for chunk in chunks]),
        positions=np.concatenate([np.arange(chunk.start, chunk.stop) for chunk in chunks]),
        slots=np.concatenate([kv_cache.slots(chunk.block_table, chunk.start, chunk.stop) for chunk in chunks]),
        tiles=tiles[::-1],
        final=[end - 1 for chunk, end in zip(chunks, ends, strict=True) if chunk.wants_logits],
    )


def segments(chunks: SequenceOf[Chunk], first: int, last: int, kv_cache: KVCache) -> tuple[Segment, ...]:
    """The parts of rows first..last by sequence, no longer than attend at once; numbered from ``first``."""
    parts, row = [], 0
    for chunk in chunks:
        begin, end = max(row, first), min(row + len(chunk.token_ids), last)
        for a in range(begin, end, ATTENTION_ROWS):
            b = min(a + ATTENTION_ROWS, end)
            parts.append(Segment(a - first, b - first, kv_cache.context(chunk.block_table, chunk.start + b - row)))
        row += len(chunk.token_ids)
    return tuple(parts)


def final_segments(chunks: SequenceOf[Chunk], kv_cache: KVCache) -> tuple[Segment, ...]:
    """One single-row segment for each chunk that wants logits."""
    wanting = [chunk for chunk in chunks if chunk.wants_logits]
    return tuple(
        Segment(row, row + 1, kv_cache.context(chunk.block_table, chunk.stop)) for row, chunk in enumerate(wanting)
    )
