"""What happened to cached blocks, in the order it happened. Fields and meaning are vLLM's (vllm/distributed/kv_events.py).

Whoever replays them holds the same blocks as the cache: a store comes after the removals that made room for it, a block
that is already stored is not stored again, a hit says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BlockHash = bytes | int
"""A whole digest, or its low 64 bits, which is what most engines publish."""


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Neighbouring blocks of one prompt became findable.

    Attributes:
        block_hashes: first to last; each is the parent of the next.
        parent_block_hash: of the block before the first; None at a prompt's start.
        token_ids: of all these blocks, ``block_size`` each.
        block_size: tokens a block.
        lora_name: the adapter's name.
        extra_keys: of each block, bare (see :func:`foreword.core.extra_keys.untag`); None for a block without.
        medium: where the blocks are: "GPU", "CPU", "STORAGE"; None is unsaid.
    """

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    lora_name: str | None = None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    medium: str | None = None


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Blocks are no longer findable: their last copy was evicted, expired or reset."""

    block_hashes: list[BlockHash]
    medium: str | None = None


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """Nothing is cached any more."""


KVCacheEvent = BlockStored | BlockRemoved | AllBlocksCleared
