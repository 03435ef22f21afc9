"""The tier below the KV arrays: blocks are copied to disk as they fill, and brought back instead of being computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import structlog

from foreword.core.cache_request import CacheRequest
from foreword.core.prefix_cache import PrefixCache
from foreword.engine.disk_store import DiskStore
from foreword.engine.kv_cache import KVCache
from foreword.engine.sequence import Sequence

log = structlog.get_logger(__name__)

RESTORE_BYTES = 16 << 20
"""Read from disk in one step at most, so that sequences that decode do not wait long for their next token."""


class DiskTier:
    """Moves blocks between the KV arrays and a store. Called by the engine's thread alone; it owns the store."""

    def __init__(self, store: DiskStore, kv_cache: KVCache, prefix_cache: PrefixCache) -> None:
        self.store = store
        self._kv_cache = kv_cache
        self._prefix_cache = prefix_cache

    def can_restore(self, request: CacheRequest) -> bool:
        """Whether the next block of this admitted request is on disk. Its last token is computed in any case."""
        size = self._prefix_cache.block_size
        depth, within = divmod(request.num_computed_tokens, size)
        return not within and depth < (len(request.token_ids) - 1) // size and request.block_hashes[depth] in self.store

    def restore(self, request: CacheRequest, now: float) -> None:
        """Bring back the request's next blocks, as many as fit a step."""
        for _ in range(max(1, RESTORE_BYTES // self._kv_cache.bytes_per_block)):
            if not self.can_restore(request):
                return
            depth = request.num_computed_tokens // self._prefix_cache.block_size
            block = self.store.get(request.block_hashes[depth], depth)
            if block is None:
                return
            self._kv_cache.write_block(request.block_table[depth].block_id, np.frombuffer(block, np.float32))
            self._prefix_cache.restore(request, 1, now)

    def save(self, sequence: Sequence) -> None:
        """Have the sequence's full blocks kept for a day, those that it only found as well.

        Blocks that the store cannot take now are offered again at the next step.
        """
        request = sequence.cache
        if not request.shares_blocks:
            return
        for depth in range(sequence.num_saved_blocks, request.num_computed_tokens // self._prefix_cache.block_size):
            block_hash = request.block_hashes[depth]
            if not self.store.keep(block_hash, depth):
                block = self._kv_cache.read_block(request.block_table[depth].block_id)
                if not self.store.put(block_hash, request.keys.cache_salt, block.data.cast("B"), depth):
                    return
            sequence.num_saved_blocks = depth + 1


def open_store(
    folder: Path, *, model: str, block_bytes: int, max_bytes: int, clock: Callable[[], float]
) -> DiskStore | None:
    """The store in a folder, or None, with a warning that says why there is none: requests go on without."""
    try:
        return DiskStore(folder, model=model, block_bytes=block_bytes, max_bytes=max_bytes, clock=clock)
    except BlockingIOError:
        reason = "Another process uses this folder."
    except OSError as error:
        reason = str(error)
    log.warning("prompt_cache_disk.off", folder=str(folder), reason=reason)
    return None
