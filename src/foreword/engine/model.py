"""The decoder: token ids in, logits out, keys and values left in the KV cache.

Rows of all sequences in a step, prompt chunks and single decode tokens alike, go through every matrix together. Many
rows are cut into tiles: a thread takes a tile from the attention of one layer to the projections of the next, so a step
meets one barrier a layer (the keys and values of all rows must be written before any row attends). Few rows are one
tile, and BLAS may split its products over the cores instead (see ``threads``).
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import partial

import numpy as np

from foreword.engine.kernels import attend, linear, rms_norm, rotate, silu_times
from foreword.engine.kv_cache import KVCache, Slots
from foreword.engine.rope import rotation_tables
from foreword.engine.threads import ComputeThreads
from foreword.engine.tiles import TILE_ROWS, Chunk, Plan, Segment, final_segments, plan, segments
from foreword.engine.weights import Array, Weights

__all__ = ["Chunk", "LlamaModel"]


@dataclass(frozen=True, slots=True)
class _Tile:
    """Rows that one thread takes through a layer.

    Attributes:
        hidden: [rows, hidden], the residual stream, updated in place.
        query: [kv heads, rows, heads per kv head, head_dim], from one layer's projection to its attention.
        slots: where the rows' keys and values go.
        cos, sin: [rows, 1, head_dim / 2].
    """

    hidden: Array
    query: Array
    slots: Slots
    cos: Array
    sin: Array
    segments: tuple[Segment, ...]


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

    def scores(self, shape: tuple[int, ...]) -> Array:
        size = int(np.prod(shape))
        if self._scores.size < size:
            self._scores = np.empty(size * 5 // 4, np.float32)
        return self._scores[:size].reshape(shape)


class LlamaModel:
    """A Llama-architecture decoder over float32 weights. ``forward`` is not re-entrant."""

    def __init__(self, weights: Weights, kv_cache: KVCache, threads: ComputeThreads, max_positions: int) -> None:
        self.weights = weights
        self.config = weights.config
        self.kv_cache = kv_cache
        self._threads = threads
        self._group = self.config.num_heads // self.config.num_kv_heads
        self._cos, self._sin = rotation_tables(self.config.inv_freq, max_positions)
        self._workspaces: queue.SimpleQueue[_Workspace] = queue.SimpleQueue()
        for _ in range(threads.count):
            self._workspaces.put(_Workspace(weights, TILE_ROWS))

    def forward(self, chunks: SequenceOf[Chunk]) -> Array:
        """Compute the chunks, keep their KV, and return logits [chunks that want them, vocabulary], in order."""
        step = plan(chunks, self.kv_cache, self._threads.count)
        if len(step.tiles) > 1:
            with self._threads.blas_threads(1):
                return self._compute(step)
        with self._threads.splitting():
            return self._compute(step)

    def _compute(self, step: Plan) -> Array:
        hidden: Array = self.weights.embedding[step.token_ids]
        tiles = [self._tile(step, hidden, first, last) for first, last in step.tiles]
        self._for_each(tiles, partial(self._project, 0))
        for layer in range(self.config.num_layers - 1):
            self._for_each(tiles, partial(self._advance, layer))
        return self._logits(self._final_tile(step, hidden, tiles))

    def _for_each(self, tiles: SequenceOf[_Tile], function: Callable[[_Tile, _Workspace], None]) -> None:
        def with_workspace(tile: _Tile) -> None:
            work = self._workspaces.get()
            try:
                function(tile, work)
            finally:
                self._workspaces.put(work)

        self._threads.run(with_workspace, tiles)

    # --- making tiles

    def _tile(self, step: Plan, hidden: Array, first: int, last: int) -> _Tile:
        """Rows first..last."""
        shape = (self.config.num_kv_heads, last - first, self._group, self.config.head_dim)
        positions = step.positions[first:last]
        return _Tile(
            hidden=hidden[first:last],
            query=np.empty(shape, np.float32),
            slots=step.slots[first:last],
            cos=self._cos[positions, None],
            sin=self._sin[positions, None],
            segments=segments(step.chunks, first, last, self.kv_cache),
        )

    def _final_tile(self, step: Plan, hidden: Array, tiles: SequenceOf[_Tile]) -> _Tile:
        """The rows whose logits are asked for: no others need the attention and feed-forward of the last layer."""
        query = np.concatenate([tile.query for tile in reversed(tiles)], axis=1)
        return _Tile(
            hidden=hidden[step.final],
            query=query[:, step.final],
            slots=step.slots[step.final],
            cos=tiles[0].cos[:0],
            sin=tiles[0].sin[:0],
            segments=final_segments(step.chunks, self.kv_cache),
        )

    # --- one tile through one layer

    def _advance(self, layer: int, tile: _Tile, work: _Workspace) -> None:
        """From the attention of one layer to the projections of the next."""
        self._attend(layer, tile, work)
        self._feed_forward(layer, tile, work)
        self._project(layer + 1, tile, work)

    def _project(self, layer: int, tile: _Tile, work: _Workspace) -> None:
        """Queries into the tile, keys and values into the cache, both rotated to their positions."""
        config, weights, rows = self.config, self.weights.layers[layer], len(tile.hidden)
        normed = rms_norm(tile.hidden, weights.input_norm, config.rms_norm_eps, work.normed[:rows])
        heads = linear(normed, weights.qkv, work.qkv[:rows]).reshape(rows, -1, config.head_dim)
        queries, keys, values = np.split(heads, (config.num_heads, config.num_heads + config.num_kv_heads), axis=1)
        rotate(keys, tile.cos, tile.sin, work.rotated_keys[:rows])
        self.kv_cache.write(layer, tile.slots, work.rotated_keys[:rows], values)
        by_kv_head = tile.query.transpose(1, 0, 2, 3)
        rotate(queries.reshape(by_kv_head.shape), tile.cos[:, None], tile.sin[:, None], by_kv_head)
        by_kv_head *= np.float32(config.head_dim**-0.5)

    def _attend(self, layer: int, tile: _Tile, work: _Workspace) -> None:
        """Add the attention block's output to the residual stream."""
        rows = len(tile.hidden)
        attention = work.attention[:rows]
        by_kv_head = attention.reshape(rows, -1, self._group, self.config.head_dim).transpose(1, 0, 2, 3)
        for segment in tile.segments:
            keys, values = self.kv_cache.read(layer, segment.context)
            at = slice(segment.first, segment.last)
            for heads in self._heads_together(segment):
                by_kv_head[heads, at] = attend(
                    tile.query[heads, at], [k[:, heads] for k in keys], [v[:, heads] for v in values], work.scores
                )
        output = self.weights.layers[layer].output
        _add(tile.hidden, linear(attention.reshape(rows, -1), output, work.projected[:rows]))

    def _heads_together(self, segment: Segment) -> SequenceOf[slice]:
        """A single row attends with all heads at once; more go head by head, for the cache to hold the scores."""
        if segment.last - segment.first == 1:
            return (slice(None),)
        return [slice(head, head + 1) for head in range(self.config.num_kv_heads)]

    def _feed_forward(self, layer: int, tile: _Tile, work: _Workspace) -> None:
        """Add the feed-forward block's output to the residual stream."""
        weights, rows, inner = self.weights.layers[layer], len(tile.hidden), self.config.intermediate_size
        normed = rms_norm(tile.hidden, weights.post_attention_norm, self.config.rms_norm_eps, work.normed[:rows])
        gate_up = linear(normed, weights.gate_up, work.gate_up[:rows])
        activated = silu_times(gate_up[:, :inner], gate_up[:, inner:], work.inner[:rows])
        _add(tile.hidden, linear(activated, weights.down, work.projected[:rows]))

    def _logits(self, tile: _Tile) -> Array:
        """Finish the last layer and project onto the vocabulary."""
        rows, last = len(tile.hidden), self.config.num_layers - 1
        logits = np.empty((rows, self.config.vocab_size), np.float32)
        if not rows:
            return logits

        def finish(tile: _Tile, work: _Workspace) -> None:
            self._attend(last, tile, work)
            self._feed_forward(last, tile, work)
            normed = rms_norm(tile.hidden, self.weights.norm, self.config.rms_norm_eps, work.normed[:rows])
            linear(normed, self.weights.lm_head, logits)

        self._for_each([tile], finish)
        return logits


def _add(residual: Array, x: Array) -> None:
    np.add(residual, x, out=residual)
