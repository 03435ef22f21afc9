"""What a CachedTokenizer tells of itself."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LevelStatistics:
    """What one cache level did and holds.

    Attributes:
        hits, misses: lookups that found something, and that did not.
        entries: inputs (L0) or nodes (L1) held.
        bytes: memory held.
        evictions: entries given up for room.
        reused_bytes: UTF-8 bytes of text whose ids came from here.
    """

    hits: int = 0
    misses: int = 0
    entries: int = 0
    bytes: int = 0
    evictions: int = 0
    reused_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """What a CachedTokenizer did and holds.

    Attributes:
        l0, l1: by level; all zero for a level that is left out or switched off.
        cached_tokens, uncached_tokens: ids returned that came from a cache, and that were encoded.
        shared: calls that waited for another thread to encode the same text.
        encoder_fallbacks: times the second encoder was given up because its ids differed from the reference's.
    """

    l0: LevelStatistics = field(default_factory=LevelStatistics)
    l1: LevelStatistics = field(default_factory=LevelStatistics)
    cached_tokens: int = 0
    uncached_tokens: int = 0
    shared: int = 0
    encoder_fallbacks: int = 0
