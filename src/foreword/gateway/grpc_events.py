"""KV events as they come over gRPC: blocks one by one, hashes signed, tiers named."""

from __future__ import annotations

from typing import Any

from smg_grpc_proto.generated import common_pb2

from foreword.core.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent
from foreword.gateway.kv_events import EventBatch

UNSIGNED = (1 << 64) - 1


def read_batch(message: Any) -> EventBatch:
    """A KvEventBatch as events; hashes are 64 bits, signed on this wire and unsigned everywhere else."""
    events = [event for item in message.events if (event := _read_event(item)) is not None]
    return EventBatch(message.sequence_number, message.timestamp, tuple(events))


def _read_event(item: Any) -> KVCacheEvent | None:
    kind = item.WhichOneof("data")
    if kind == "cleared":
        return AllBlocksCleared()
    data = getattr(item, kind) if kind else None
    if data is None or data.group_idx or data.tier > common_pb2.KV_CACHE_TIER_DEVICE:
        return None
    if data.HasField("locality") and data.locality == common_pb2.KV_CACHE_LOCALITY_REMOTE:
        return None
    if kind == "removed":
        return BlockRemoved([block_hash & UNSIGNED for block_hash in data.block_hashes])
    return _read_stored(data)


def _read_stored(data: Any) -> BlockStored | None:
    blocks = data.blocks
    if not blocks:
        return None
    extra_keys = [_read_extra_keys(block) for block in blocks]
    return BlockStored(
        [block.block_hash & UNSIGNED for block in blocks],
        data.parent_block_hash & UNSIGNED if data.HasField("parent_block_hash") else None,
        [token for block in blocks for token in block.token_ids],
        blocks[0].block_size or len(blocks[0].token_ids),
        data.lora_name or None,
        extra_keys if any(extra_keys) else None,
    )


def _read_extra_keys(block: Any) -> tuple[Any, ...] | None:
    def value(extra: Any) -> Any:
        kind = extra.WhichOneof("key")
        if kind == "multimodal":
            return extra.multimodal.identifier, extra.multimodal.offset
        return getattr(extra, kind) if kind else None

    return tuple(value(extra) for extra in block.extra_keys) or None
