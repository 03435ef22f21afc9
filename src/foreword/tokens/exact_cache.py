"""L0: the ids of whole inputs seen before."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from dataclasses import dataclass

from foreword.tokens.ledger import Ledger
from foreword.tokens.tokenizer import TokenIds

_BUCKET = 4
_WHOLE = 1024
ENTRY_OVERHEAD = 640  # the entry, its ids object, its places in the bucket and in the order of use


@dataclass(frozen=True, slots=True)
class L0Config:
    """Bounds of the exact cache.

    Attributes:
        max_entries: inputs held at most.
        max_memory: bytes held at most: texts, ids, kept renderings, and the entries themselves.
        tenant_max_memory: bytes held at most for one tenant; None for no such bound.
    """

    max_entries: int = 10_000
    max_memory: int = 268_435_456
    tenant_max_memory: int | None = None


class Entry:
    """One input, what it was encoded for, its ids, and what a caller keeps beside them."""

    __slots__ = ("context", "fingerprint", "ids", "rendered", "size", "tenant", "text", "text_bytes")

    def __init__(self, text: str, context: Hashable, tenant: str, fingerprint: int, ids: TokenIds) -> None:
        self.text = text
        self.context = context
        self.tenant = tenant
        self.fingerprint = fingerprint
        self.ids = ids
        self.rendered: bytes | None = None
        self.text_bytes = utf8_length(text)
        self.size = sys.getsizeof(text) + sys.getsizeof(ids.buffer) + ENTRY_OVERHEAD


def utf8_length(text: str) -> int:
    """Bytes of the text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def fingerprint(text: str, context: Hashable) -> int:
    """A hash of a few slices of the text, so that it costs the same at any length. Equality is checked in full."""
    length = len(text)
    if length <= _WHOLE:
        return hash((text, context))
    return hash((length, text[:64], text[:: length >> 5], text[-256:], context))


class ExactCache:
    """Whole inputs and their ids, least recently used first out. Not thread-safe: its owner holds the lock.

    An entry above a quarter of the memory bound is not stored.
    """

    def __init__(self, config: L0Config) -> None:
        self.config = config
        self.evictions = 0
        self._buckets: dict[int, list[Entry]] = {}
        self._ledger: Ledger[Entry] = self._new_ledger()

    @property
    def memory(self) -> int:
        """Bytes held."""
        return self._ledger.bytes

    def __len__(self) -> int:
        return self._ledger.entries

    def get(self, text: str, context: Hashable, key: int) -> Entry | None:
        """The entry of exactly this text in this context, now the most recently used."""
        for entry in self._buckets.get(key, ()):
            if entry.context == context and entry.text == text:
                self._ledger.touch((entry,))
                return entry
        return None

    def put(self, text: str, context: Hashable, tenant: str, key: int, ids: TokenIds) -> Entry | None:
        """The entry of a text with these ids, new unless it has one; None when it is too large to be stored."""
        if (held := self.get(text, context, key)) is not None:
            return held
        entry = Entry(text, context, tenant, key, ids)
        if entry.size > self._ledger.largest_item or self.config.max_entries < 1:
            return None
        bucket = self._buckets.get(key, [])
        if len(bucket) >= _BUCKET:
            self._evict(bucket[0])
        self._make_room(tenant, entry.size, entries=1)
        self._buckets.setdefault(key, []).append(entry)
        self._ledger.add(entry)
        return entry

    def keep_rendered(self, entry: Entry, rendered: bytes) -> bool:
        """Keep the bytes of a ready answer beside the entry's ids; False when it is gone or they are too large."""
        extra = sys.getsizeof(rendered)
        if not self._holds(entry) or entry.rendered is not None or entry.size + extra > self._ledger.largest_item:
            return False
        self._ledger.touch((entry,))
        self._make_room(entry.tenant, extra, entries=0)
        if not self._holds(entry):
            return False
        entry.rendered = rendered
        self._ledger.resize(entry, entry.size + extra)
        return True

    def clear(self) -> None:
        """Forget everything."""
        self._buckets.clear()
        self._ledger = self._new_ledger()

    def check_integrity(self) -> None:
        """Raise RuntimeError unless buckets and ledger hold the same entries within the bounds."""
        self._ledger.check_integrity()
        if sum(map(len, self._buckets.values())) != len(self):
            raise RuntimeError("the buckets and the ledger differ in entries")
        for key, bucket in self._buckets.items():
            if not 0 < len(bucket) <= _BUCKET or any(entry.fingerprint != key for entry in bucket):
                raise RuntimeError(f"the bucket {key} has {len(bucket)} entries, or a stranger")

    def _new_ledger(self) -> Ledger[Entry]:
        config = self.config
        return Ledger(config.max_memory, max_entries=config.max_entries, tenant_max_memory=config.tenant_max_memory)

    def _holds(self, entry: Entry) -> bool:
        return any(held is entry for held in self._buckets.get(entry.fingerprint, ()))

    def _make_room(self, tenant: str, size: int, *, entries: int) -> None:
        while (victim := self._ledger.victim(tenant, size, entries=entries)) is not None:
            self._evict(victim)

    def _evict(self, entry: Entry) -> None:
        bucket = self._buckets[entry.fingerprint]
        bucket.remove(entry)
        if not bucket:
            del self._buckets[entry.fingerprint]
        self._ledger.remove(entry)
        self.evictions += 1
