"""The decoder: token ids in, logits out, keys and values left in the KV cache.

Rows of all sequences in a step, prompt chunks and single decode tokens alike, go through every matrix together. Rows are
cut into tiles (see ``threads``); a tile's buffers stay in its core's cache from the attention of one layer to the
projections of the next, so a step meets one barrier a layer: the keys and values of all rows must be written before any
row attends.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from foreword.engine.kv_cache import Context, KVCache, Slots
from foreword.engine.rope import rotation_tables
from foreword.engine.threads import ComputeThreads
from foreword.engine.weights import Array, Weights

_TILE_ROWS = 128
"""Rows whose activations fit a core's second-level cache beside a weight panel."""
_ATTENTION_ROWS = 64
"""Rows that attend at once: bounds the score buffer at 64 * heads-per-kv-head * context floats."""
_SINGLE_TILE_ROWS = 32
"""Below this, one tile with a multi-threaded BLAS beats two tiles reading all weights each."""
_GEMV_ROWS = 3
"""Up to this many rows, matrix-vector products beat OpenBLAS's matrix product, which repacks the weights first."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence to compute: positions ``start`` onward, their KV to be kept in ``block_table``.

    ``wants_logits`` says that the logits after the last token are asked for.
    """

    token_ids: SequenceOf[int]
    start: int
    block_table: SequenceOf[int]
    wants_logits: bool


@dataclass(frozen=True, slots=True)
class _Segment:
    """Rows first..last of a tile that belong to one sequence and end at ``context.length``."""

    first: int
    last: int
    context: Context


@dataclass(frozen=True, slots=True)
class _Tile:
    """Rows that one thread takes through a layer.

    Attributes:
        hidden: [rows, hidden], the residual stream, updated in place.
        query: [kv_heads, rows, heads per kv head, head_dim], from one layer's projection to its attention.
        slots: where the rows' keys and values go.
        cos, sin: [rows, 1, head_dim / 2].
    """

    hidden: Array
    query: Array
    slots: Slots
    cos: Array
    sin: Array
    segments: tuple[_Segment, ...]


class _Workspace:
    """Buffers of one thread, reused from tile to tile and step to step."""

    def __init__(self, weights: Weights, rows: int) -> None:
        config = weights.config
        self.normed = np.empty((rows, config.hidden_size), np.float32)
        self.qkv = np.empty((rows, config.query_size + 2 * config.kv_size), np.float32)
        self.rotated_keys = np.empty((rows, config.num_kv_heads, config.head_dim), np.float32)
        self.attention = np.empty((rows, config.num_heads, config.head_dim), np.float32)
        self.projected = np.empty((rows, config.hidden_size), np.float32)
        self.gate_up = np.empty((rows, 2 * config.intermediate_size), np.float32)
        self.inner = np.empty((rows, config.intermediate_size), np.float32)
        self._scores = np.empty(0, np.float32)

    def scores(self, rows: int, columns: int) -> Array:
        if self._scores.size < rows * columns:
            self._scores = np.empty(rows * columns * 5 // 4, np.float32)
        return self._scores[: rows * columns].reshape(rows, columns)


class LlamaModel:
    """A Llama-architecture decoder over float32 weights. ``forward`` is not re-entrant."""

    def __init__(self, weights: Weights, kv_cache: KVCache, threads: ComputeThreads, max_positions: int) -> None:
        self.weights = weights
        self.config = weights.config
        self.kv_cache = kv_cache
        self._threads = threads
        self._cos, self._sin = rotation_tables(self.config.inv_freq, max_positions)
        self._mask = np.triu(np.full((_ATTENTION_ROWS, _ATTENTION_ROWS), -np.inf, np.float32), 1)
        self._workspaces: queue.SimpleQueue[_Workspace] = queue.SimpleQueue()
        for _ in range(threads.count):
            self._workspaces.put(_Workspace(weights, _TILE_ROWS))

    def forward(self, chunks: SequenceOf[Chunk]) -> Array:
        """Compute the chunks, keep their KV, and return logits [chunks that want them, vocabulary], in order."""
        tiles = self._tiles(chunks)
        if len(tiles) == 1:
            with self._threads.splitting():
                return self._compute(chunks, tiles)
        with self._threads.blas_threads(1):
            return self._compute(chunks, tiles)

    def _compute(self, chunks: SequenceOf[Chunk], tiles: SequenceOf[_Tile]) -> Array:
        self._for_each(tiles, partial(self._project, 0))
        for layer in range(self.config.num_layers - 1):
            self._for_each(tiles, partial(self._advance, layer))
        return self._logits(self._final_rows(chunks, tiles))

    # --- cutting a step into tiles

    def _tiles(self, chunks: SequenceOf[Chunk]) -> list[_Tile]:
        """Even cuts over all rows; the last tile, which attends to most, comes first."""
        token_ids = np.concatenate([np.asarray(chunk.token_ids, np.int64) for chunk in chunks])
        positions = np.concatenate([np.arange(c.start, c.start + len(c.token_ids)) for c in chunks])
        slots = np.concatenate(
            [self.kv_cache.slots(c.block_table, c.start, c.start + len(c.token_ids)) for c in chunks]
        )
        hidden: Array = self.weights.embedding[token_ids]
        rows = len(token_ids)
        count = 1 if rows < _SINGLE_TILE_ROWS else max(self._threads.count, -(-rows // _TILE_ROWS))
        edges = [rows * index // count for index in range(count + 1)]
        tiles = [
            self._tile(hidden[a:b], positions[a:b], slots[a:b], self._segments(chunks, a, b))
            for a, b in pairwise(edges)
        ]
        return tiles[::-1]

    def _tile(self, hidden: Array, positions: NDArray[np.int64], slots: Slots, segments: tuple[_Segment, ...]) -> _Tile:
        config = self.config
        group = config.num_heads // config.num_kv_heads
        query = np.empty((config.num_kv_heads, len(hidden), group, config.head_dim), np.float32)
        return _Tile(hidden, query, slots, self._cos[positions, None], self._sin[positions, None], segments)

    def _segments(self, chunks: SequenceOf[Chunk], first: int, last: int) -> tuple[_Segment, ...]:
        """The parts of rows first..last by sequence, no longer than attend at once."""
        segments, row = [], 0
        for chunk in chunks:
            begin, end = max(row, first), min(row + len(chunk.token_ids), last)
            for a in range(begin, end, _ATTENTION_ROWS):
                b = min(a + _ATTENTION_ROWS, end)
                context = self.kv_cache.context(chunk.block_table, chunk.start + b - row)
                segments.append(_Segment(a - first, b - first, context))
            row += len(chunk.token_ids)
        return tuple(segments)

    def _final_rows(self, chunks: SequenceOf[Chunk], tiles: SequenceOf[_Tile]) -> list[_Tile]:
        """The rows whose logits are asked for, as tiles of single-row segments: the last layer need finish no others."""
        hidden = np.concatenate([tile.hidden for tile in tiles[::-1]])
        query = np.concatenate([tile.query for tile in tiles[::-1]], axis=1)
        rows, contexts = [], []
        ends = np.cumsum([len(chunk.token_ids) for chunk in chunks])
        for chunk, end in zip(chunks, ends.tolist(), strict=True):
            if chunk.wants_logits:
                rows.append(end - 1)
                contexts.append(self.kv_cache.context(chunk.block_table, chunk.start + len(chunk.token_ids)))
        empty = np.empty(0, np.float32)
        return [
            _Tile(
                hidden[rows[a : a + _TILE_ROWS]],
                query[:, rows[a : a + _TILE_ROWS]],
                np.empty(0, np.int64),
                empty,
                empty,
                tuple(_Segment(i, i + 1, context) for i, context in enumerate(contexts[a : a + _TILE_ROWS])),
            )
            for a in range(0, len(rows), _TILE_ROWS)
        ]

    def _for_each(self, tiles: SequenceOf[_Tile], step: Callable[[_Tile, _Workspace], None]) -> None:
        def with_workspace(tile: _Tile) -> None:
            work = self._workspaces.get()
            try:
                step(tile, work)
            finally:
                self._workspaces.put(work)

        self._threads.run(with_workspace, tiles)

    # --- one tile through one layer

    def _advance(self, layer: int, tile: _Tile, work: _Workspace) -> None:
        """From the attention of one layer to the projections of the next."""
        self._attend(layer, tile, work)
        self._feed_forward(layer, tile, work)
        self._project(layer + 1, tile, work)

    def _project(self, layer: int, tile: _Tile, work: _Workspace) -> None:
        """Queries into the tile, keys and values into the cache, both rotated to their positions."""
        config, weights, rows = self.config, self.weights.layers[layer], len(tile.hidden)
        normed = _rms_norm(tile.hidden, weights.input_norm, config.rms_norm_eps, work.normed[:rows])
        qkv = _linear(normed, weights.qkv, work.qkv[:rows])
        heads = qkv.reshape(rows, -1, config.head_dim)
        stop = config.num_heads + config.num_kv_heads
        keys = work.rotated_keys[:rows]
        _rotate(heads[:, config.num_heads : stop], tile.cos, tile.sin, keys)
        self.kv_cache.write(layer, tile.slots, keys, heads[:, stop:])
        grouped = tile.query.transpose(1, 0, 2, 3)
        queries = heads[:, : config.num_heads].reshape(grouped.shape)
        _rotate(queries, tile.cos[:, None], tile.sin[:, None], grouped)
        grouped *= np.float32(config.head_dim**-0.5)

    def _attend(self, layer: int, tile: _Tile, work: _Workspace) -> None:
        """Add the attention block's output to the residual stream."""
        rows = len(tile.hidden)
        attention = work.attention[:rows]
        for segment in tile.segments:
            keys, values = self.kv_cache.read(layer, segment.context)
            rows_of = slice(segment.first, segment.last)
            for head in range(self.config.num_kv_heads):
                group = slice(head * tile.query.shape[2], (head + 1) * tile.query.shape[2])
                attention[rows_of, group] = self._attend_head(
                    tile.query[head, rows_of], [k[:, head] for k in keys], [v[:, head] for v in values], work
                )
        _add(
            _linear(attention.reshape(rows, -1), self.weights.layers[layer].output, work.projected[:rows]), tile.hidden
        )

    def _attend_head(self, query: Array, keys: list[Array], values: list[Array], work: _Workspace) -> Array:
        """softmax(q k') v for the query heads of one kv head: [rows, group, head_dim]. The rows are the last positions."""
        rows, group, head_dim = query.shape
        columns = sum(map(len, keys))
        scores = work.scores(rows * group, columns)
        flat, at = query.reshape(rows * group, head_dim), 0
        for run in keys:
            np.matmul(flat, run.T, out=scores[:, at : at + len(run)])
            at += len(run)
        if rows > 1:
            scores.reshape(rows, group, columns)[:, :, columns - rows :] += self._mask[:rows, None, :rows]
        total = _exponentiate(scores)
        at = len(values[0])
        mixed = scores[:, :at] @ values[0]
        for run in values[1:]:
            mixed += scores[:, at : at + len(run)] @ run
            at += len(run)
        mixed /= total
        return mixed.reshape(rows, group, head_dim)

    def _feed_forward(self, layer: int, tile: _Tile, work: _Workspace) -> None:
        """Add silu(gate) * up, projected down, to the residual stream."""
        weights, rows, inner = self.weights.layers[layer], len(tile.hidden), self.config.intermediate_size
        normed = _rms_norm(tile.hidden, weights.post_attention_norm, self.config.rms_norm_eps, work.normed[:rows])
        gate_up = _linear(normed, weights.gate_up, work.gate_up[:rows])
        gate, up, divisor = gate_up[:, :inner], gate_up[:, inner:], work.inner[:rows]
        np.negative(gate, out=divisor)
        np.exp(divisor, out=divisor)
        divisor += 1
        np.divide(gate, divisor, out=divisor)
        divisor *= up
        _add(_linear(divisor, weights.down, work.projected[:rows]), tile.hidden)

    def _logits(self, tiles: SequenceOf[_Tile]) -> Array:
        """Finish the last layer for the rows that are asked for, and project them onto the vocabulary."""
        last = self.config.num_layers - 1
        logits = np.empty((sum(len(tile.hidden) for tile in tiles), self.config.vocab_size), np.float32)
        work, at = self._workspaces.get(), 0
        for tile in tiles:
            rows = len(tile.hidden)
            self._attend(last, tile, work)
            self._feed_forward(last, tile, work)
            normed = _rms_norm(tile.hidden, self.weights.norm, self.config.rms_norm_eps, work.normed[:rows])
            _linear(normed, self.weights.lm_head, logits[at : at + rows])
            at += rows
        self._workspaces.put(work)
        return logits


def _linear(x: Array, weight: Array, out: Array) -> Array:
    """Multiply x [rows, in] by the transpose of weight [out, in] into ``out`` [rows, out]."""
    if len(x) <= _GEMV_ROWS:
        for row, result in zip(x, out, strict=True):
            np.matmul(weight, row, out=result)
    else:
        np.matmul(x, weight.T, out=out)
    return out


def _add(x: Array, out: Array) -> None:
    np.add(out, x, out=out)


def _rms_norm(x: Array, weight: Array, eps: float, out: Array) -> Array:
    """Root-mean-square normalisation: x / sqrt(mean(x ** 2) + eps) * weight, over the last axis."""
    mean_square = np.einsum("ij,ij->i", x, x) / x.shape[1]
    scale = 1 / np.sqrt(mean_square + np.float32(eps))
    np.multiply(x, scale[:, None], out=out)
    out *= weight
    return out


def _rotate(x: Array, cos: Array, sin: Array, out: Array) -> None:
    """Rotate each pair (x[i], x[i + half]) by its angle."""
    half = x.shape[-1] // 2
    low, high = x[..., :half], x[..., half:]
    np.multiply(low, cos, out=out[..., :half])
    out[..., :half] -= high * sin
    np.multiply(high, cos, out=out[..., half:])
    out[..., half:] += low * sin


def _exponentiate(scores: Array) -> Array:
    """Turn scores into exp(score - row maximum), in place, and return the row sums [rows, 1]."""
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    total: Array = scores.sum(axis=1, keepdims=True)
    return total
