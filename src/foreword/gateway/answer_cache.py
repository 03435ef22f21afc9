"""Ready answers of /v1/tokenize by the raw bytes of the request's body: the outermost part of the L0 level."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from foreword.gateway.metrics import Sample

_SLICES, _SLICE = 8, 32
_WHOLE = 2048
"""Bodies up to this length are their own key."""
_OVERHEAD = 512
"""Bytes of Python objects charged to an entry beside its body and answer."""

Key = tuple[str, int, int, bytes]


@dataclass(frozen=True, slots=True)
class Reuse:
    """What an answer saves each time: texts looked up, their bytes and their tokens."""

    texts: int
    text_bytes: int
    tokens: int


@dataclass(frozen=True, slots=True)
class AnswerCacheStatistics:
    """Counts since the start and what is held now."""

    hits: int
    misses: int
    evictions: int
    entries: int
    bytes: int


@dataclass(slots=True)
class _Entry:
    body: bytes
    answer: bytes
    reuse: Reuse
    charge: int


class AnswerCache:
    """Maps a body to its whole answer, per organisation and registry generation.

    An identical body has an identical answer, so nothing need be parsed. The kept body is compared in
    full, so a collision of keys costs a miss and never a wrong answer. Least recently used entries go first, by count
    and by bytes; one over a quarter of the bytes is not stored.
    """

    def __init__(self, *, max_entries: int, max_memory: int) -> None:
        self._max_entries = max_entries
        self._max_memory = max_memory
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._bytes = 0
        self._hits = self._misses = self._evictions = 0
        self._reused_texts = self._reused_bytes = self._reused_tokens = 0

    def find(self, organisation: str, generation: int, body: bytes) -> bytes | None:
        """The answer to exactly this body, or None."""
        answer = self.peek(organisation, generation, body)
        self._misses += answer is None
        return answer

    def peek(self, organisation: str, generation: int, body: bytes) -> bytes | None:
        """As ``find``, but a miss is not counted."""
        key = _key(organisation, generation, body)
        entry = self._entries.get(key)
        if entry is None or entry.body != body:
            return None
        self._hits += 1
        self._reused_texts += entry.reuse.texts
        self._reused_bytes += entry.reuse.text_bytes
        self._reused_tokens += entry.reuse.tokens
        self._entries.move_to_end(key)
        return entry.answer

    def store(self, organisation: str, generation: int, body: bytes, answer: bytes, reuse: Reuse) -> None:
        """Keep an answer, evicting what is over the bounds."""
        charge = len(body) + len(answer) + _OVERHEAD
        if charge > self._max_memory // 4:
            return
        key = _key(organisation, generation, body)
        if (old := self._entries.pop(key, None)) is not None:
            self._bytes -= old.charge
        self._entries[key] = _Entry(body, answer, reuse, charge)
        self._bytes += charge
        while self._bytes > self._max_memory or len(self._entries) > self._max_entries:
            _, evicted = self._entries.popitem(last=False)
            self._bytes -= evicted.charge
            self._evictions += 1

    def clear(self) -> None:
        """Drop everything held."""
        self._entries.clear()
        self._bytes = 0

    def statistics(self) -> AnswerCacheStatistics:
        """Counts and sizes now."""
        return AnswerCacheStatistics(self._hits, self._misses, self._evictions, len(self._entries), self._bytes)

    def check_integrity(self) -> None:
        """Raise AssertionError when the books do not balance."""
        charged = sum(len(entry.body) + len(entry.answer) + _OVERHEAD for entry in self._entries.values())
        if charged != self._bytes or charged > self._max_memory or len(self._entries) > self._max_entries:
            raise AssertionError(self.statistics(), charged)

    def samples(self) -> Iterator[Sample]:
        """Its metrics. A hit here is a hit of L0 too; a miss is counted by the level that looks next."""
        yield "tokenizer_cache_lookups", ("l0", "hit"), self._reused_texts
        yield "tokenizer_cache_reused_bytes", ("l0",), self._reused_bytes
        yield "tokenizer_cached_tokens", (), self._reused_tokens
        yield "tokenize_response_cache_entries", (), len(self._entries)
        yield "tokenize_response_cache_bytes", (), self._bytes
        yield "tokenize_response_cache_evictions", (), self._evictions


def _key(organisation: str, generation: int, body: bytes) -> Key:
    """Whole for short bodies, else the length and a few slices: hashing a megabyte would cost more than comparing it."""
    length = len(body)
    if length <= _WHOLE:
        return organisation, generation, length, body
    step = (length - _SLICE) // (_SLICES - 1)
    return organisation, generation, length, b"".join([body[i * step : i * step + _SLICE] for i in range(_SLICES)])
