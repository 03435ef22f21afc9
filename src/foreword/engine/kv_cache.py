"""Keys and values of every layer, in blocks. Who holds which block is the prefix cache's business.

A sequence's tokens lie in the blocks of its block table: position p is in slot ``table[p // block_size] * block_size +
p % block_size``. Blocks that happen to follow each other in memory are read as one run, without copying.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from foreword.engine.weights import Array, ModelConfig

_MAX_RUNS = 16
"""With more runs than this, one gathering copy is cheaper than a matrix product for each."""

Slots = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Context:
    """Where the keys and values of one sequence's first ``length`` positions lie: as runs of slots, or slot by slot."""

    length: int
    runs: tuple[tuple[int, int], ...]
    slots: Slots | None = None


class KVCache:
    """The arrays: keys and values, each [layers, blocks, block_size, kv_heads, head_dim] in float32."""

    def __init__(self, config: ModelConfig, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        shape = (config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim)
        self.keys: Array = np.empty(shape, np.float32)
        self.values: Array = np.empty(shape, np.float32)
        flat = (config.num_layers, num_blocks * block_size, config.num_kv_heads, config.head_dim)
        self._keys, self._values = self.keys.reshape(flat), self.values.reshape(flat)

    @staticmethod
    def block_bytes(config: ModelConfig, block_size: int) -> int:
        """Memory of one block over all layers."""
        return 2 * 4 * config.num_layers * block_size * config.kv_size

    @property
    def bytes_per_block(self) -> int:
        """Of all layers together."""
        return (self.keys.nbytes + self.values.nbytes) // self.num_blocks

    def read_block(self, block_id: int) -> Array:
        """A copy of a block: [2, layers, block_size, kv_heads, head_dim], keys before values."""
        return np.stack([self.keys[:, block_id], self.values[:, block_id]])

    def write_block(self, block_id: int, block: Array) -> None:
        """Put back what :meth:`read_block` gave, in whatever shape."""
        shape = (2, *self.keys[:, block_id].shape)
        self.keys[:, block_id], self.values[:, block_id] = block.reshape(shape)

    def slots(self, table: SequenceOf[int], start: int, stop: int) -> Slots:
        """The slots of positions start..stop of a sequence."""
        positions = np.arange(start, stop)
        blocks = np.asarray(table, np.int64)[positions // self.block_size]
        slots: Slots = blocks * self.block_size + positions % self.block_size
        return slots

    def context(self, table: SequenceOf[int], length: int) -> Context:
        """How attention over the first ``length`` positions reads them."""
        blocks = np.asarray(table[: -(-length // self.block_size)], np.int64)
        breaks = np.flatnonzero(np.diff(blocks) != 1) + 1
        if len(breaks) >= _MAX_RUNS:
            return Context(length, ((0, length),), self.slots(table, 0, length))
        edges = [0, *breaks.tolist(), len(blocks)]
        runs, left = [], length
        for first, last in pairwise(edges):
            start = int(blocks[first]) * self.block_size
            size = min(left, (last - first) * self.block_size)
            runs.append((start, start + size))
            left -= size
        return Context(length, tuple(runs))

    def write(self, layer: int, slots: Slots, keys: Array, values: Array) -> None:
        """Store one layer's keys and values, each [rows, kv_heads, head_dim]."""
        self._keys[layer, slots] = keys
        self._values[layer, slots] = values

    def read(self, layer: int, context: Context) -> tuple[list[Array], list[Array]]:
        """Keys and values run by run, each [tokens, kv_heads, head_dim]; views wherever memory allows."""
        keys, values = self._keys[layer], self._values[layer]
        if context.slots is not None:
            return [keys[context.slots]], [values[context.slots]]
        return [keys[a:b] for a, b in context.runs], [values[a:b] for a, b in context.runs]
