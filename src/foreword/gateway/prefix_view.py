"""What the gateway expects each worker to have cached of a prompt.

Three sources, the first that applies: the index fed by the worker's KV events, which is exact; for a worker without events,
or a prompt that was not tokenised here, what was sent to it lately, as many blocks as it can hold; and, on top of either,
prompts on their way to it now, whose blocks it will hold when the next request gets its turn.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from foreword.core.events import KVCacheEvent
from foreword.core.prefix_index import PrefixIndex
from foreword.trace.replay import BlockCache

TOKENS_A_KEY = 64
"""Tokens a block of the approximate view."""
BYTES_A_TOKEN = 4
"""Text bytes taken for a token where text is all there is; also, as it happens, the bytes of a uint32 token id."""
DEFAULT_CAPACITY = 1 << 20
"""Tokens a worker without events is taken to hold."""
MAX_KEYS = 8192
"""Blocks looked at of one prompt, from its start."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as routing sees it: its ids, or its text where the worker tokenises.

    Attributes:
        text: what the prompt's text begins with, in the order the model reads it; used when there are no ids.
        num_tokens: exact with ids, else estimated from the text.
        lora: the adapter it is for, by the name that KV events give it.
    """

    token_ids: Sequence[int] | None = None
    text: bytes = b""
    cache_salt: str | None = None
    sticky_key: str | None = None
    lora: str | None = None

    @property
    def num_tokens(self) -> int:
        """Its length in tokens."""
        return len(self.token_ids) if self.token_ids is not None else len(self.text) // BYTES_A_TOKEN + 1

    def keys(self) -> list[bytes]:
        """A chained key for each block: equal keys mean equal blocks behind equal prefixes, of the same salt and adapter."""
        data = self.text if self.token_ids is None else array("I", self.token_ids).tobytes()
        step = TOKENS_A_KEY * BYTES_A_TOKEN
        key = hashlib.blake2b(repr((self.cache_salt, self.lora)).encode(), digest_size=16).digest()
        keys = []
        for start in range(0, min(len(data) // step, MAX_KEYS) * step, step):
            key = hashlib.blake2b(data[start : start + step], key=key, digest_size=16).digest()
            keys.append(key)
        return keys


@dataclass(frozen=True, slots=True)
class Lookup:
    """What was found for one prompt: expected cached tokens by worker, and which of them are exact.

    Attributes:
        predicted: from KV events alone: what each worker should report, if its events had arrived.
        expected: what routing goes by.
    """

    keys: Sequence[bytes]
    predicted: Mapping[str, int]
    expected: Mapping[str, int]


@dataclass(slots=True)
class _Source:
    """One worker's approximate side. ``has_events`` turns true with its first event."""

    sent: BlockCache
    has_events: bool = False
    on_the_way: Counter[bytes] = field(default_factory=Counter)

    def count(self, keys: Sequence[bytes], *, exact: bool) -> int:
        """Leading blocks sent lately, or on their way now; of the latter only where events tell the rest."""
        on_the_way = 0
        for key in keys:
            if key not in self.on_the_way:
                break
            on_the_way += 1
        return on_the_way if exact else max(on_the_way, self.sent.match(keys))


@dataclass(frozen=True, slots=True)
class WorkerSink:
    """Takes one worker's events into the index. With the first of them, events are what is known of the worker."""

    index: PrefixIndex
    worker: str
    source: _Source

    def apply(self, event: KVCacheEvent) -> None:
        """Take one event."""
        self.source.has_events = True
        self.index.apply(self.worker, event)

    def clear(self) -> None:
        """The worker holds nothing any more, as far as is known."""
        self.index.clear(self.worker)


class PrefixView:
    """The workers' caches as the gateway believes them to be. Owned by the event loop's thread."""

    def __init__(self) -> None:
        self.index = PrefixIndex()
        self._sources: dict[str, _Source] = {}

    def add_worker(self, worker: str, capacity: int = DEFAULT_CAPACITY) -> None:
        """Make a worker known; ``capacity`` is what it can hold, in tokens."""
        self.index.add_worker(worker)
        self._sources[worker] = _Source(BlockCache(max(1, capacity // TOKENS_A_KEY)))

    def remove_worker(self, worker: str) -> None:
        """Forget a worker."""
        self.index.remove_worker(worker)
        self._sources.pop(worker, None)

    def follow(self, worker: str) -> WorkerSink:
        """Where the worker's events go."""
        return WorkerSink(self.index, worker, self._sources[worker])

    def look_up(self, prompt: Prompt) -> Lookup:
        """Expected cached tokens by worker; workers that hold nothing of the prompt are left out."""
        keys = prompt.keys()
        predicted: dict[str, int] = {}
        if prompt.token_ids is not None:
            predicted = self.index.match(prompt.token_ids, cache_salt=prompt.cache_salt, lora=prompt.lora)
        expected = dict(predicted)
        for worker, source in self._sources.items():
            exact = source.has_events and prompt.token_ids is not None
            if blocks := source.count(keys, exact=exact):
                tokens = min(blocks * TOKENS_A_KEY, prompt.num_tokens - 1)
                expected[worker] = max(expected.get(worker, 0), tokens)
        return Lookup(keys, predicted, expected)

    def is_exact(self, worker: str) -> bool:
        """Whether the worker tells by events what it holds."""
        source = self._sources.get(worker)
        return source is not None and source.has_events

    def begin(self, worker: str, keys: Sequence[bytes]) -> None:
        """A prompt was sent to a worker."""
        if (source := self._sources.get(worker)) is not None:
            source.on_the_way.update(keys)
            source.sent.admit(keys)

    def prefilled(self, worker: str, keys: Sequence[bytes]) -> None:
        """Its prefill is done, or it failed: the worker's events tell the rest."""
        if (source := self._sources.get(worker)) is not None:
            on_the_way = source.on_the_way
            for key in keys:
                if on_the_way[key] > 1:
                    on_the_way[key] -= 1
                else:
                    del on_the_way[key]

    def clear_sent(self, worker: str) -> None:
        """The worker restarted: what was sent to it before is gone."""
        if (source := self._sources.get(worker)) is not None:
            source.sent = BlockCache(source.sent.capacity)
