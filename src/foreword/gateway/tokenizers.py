"""The tokenizers that are loaded, by name: what /v1/tokenizers lists, adds and removes, and every text passes through."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from foreword.errors import TokenizerNotFound
from foreword.gateway.errors import Refusal
from foreword.gateway.metrics import Sample
from foreword.tokens.detokenizer import Detokenizer
from foreword.tokens.token_cache import CachedTokenizer, Encoded

THREAD_CHARACTERS = 65_536
"""Texts from this length on are encoded on a thread, so that a miss does not hold up other requests."""


class ChatTemplate(Protocol):
    """What the gateway needs of a chat template; ``source`` is its Jinja text."""

    @property
    def source(self) -> str: ...  # noqa: D102

    def render(  # noqa: D102
        self,
        messages: Sequence[dict[str, Any]],
        /,
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> str: ...


@dataclass(frozen=True, slots=True)
class LoadedTokenizer:
    """A tokenizer under its name, with the chat template that came with it."""

    name: str
    source: str
    tokenizer: CachedTokenizer
    template: ChatTemplate | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    async def encode(self, text: str, *, add_special_tokens: bool = False, tenant: str = "") -> Encoded:
        """The ids of a text and where they came from; encoded on a thread when it is long."""
        encode = self.tokenizer.encode_with_usage
        if len(text) < THREAD_CHARACTERS:
            return encode(text, add_special_tokens=add_special_tokens, tenant=tenant)
        return await asyncio.to_thread(encode, text, add_special_tokens=add_special_tokens, tenant=tenant)

    def text_stream(
        self, stop: Sequence[str], *, include_stop: bool, skip_special_tokens: bool, prompt_ids: Sequence[int] = ()
    ) -> Detokenizer:
        """A detokenizer for one answer to a prompt."""
        return Detokenizer(
            self.tokenizer,
            stop=stop,
            include_stop_str_in_output=include_stop,
            skip_special_tokens=skip_special_tokens,
            prompt_ids=prompt_ids,
        )


Loader = Callable[[str, str], LoadedTokenizer]
"""Loads a tokenizer from (source, name); raises TokenizerError. Called on a thread."""


class TokenizerRegistry:
    """Tokenizers by name. Owned by the event loop's thread; ``generation`` changes whenever a name changes its meaning."""

    def __init__(
        self, tokenizers: Sequence[LoadedTokenizer] = (), *, load: Loader | None = None, limit: int = 16
    ) -> None:
        self._by_name = {loaded.name: loaded for loaded in tokenizers}
        self._load = load
        self._limit = limit
        self._removed: list[Any] = []
        self.generation = 0

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[LoadedTokenizer]:
        return iter(list(self._by_name.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def find(self, name: str) -> LoadedTokenizer:
        """The tokenizer of that name; raises TokenizerNotFound naming those that are loaded."""
        loaded = self._by_name.get(name)
        if loaded is None:
            known = ", ".join(map(repr, sorted(self._by_name))) or "none"
            raise TokenizerNotFound(f"There is no tokenizer {name[:200]!r}.", hint=f"Loaded: {known}.", name=name)
        return loaded

    async def add(self, name: str, source: str) -> LoadedTokenizer:
        """Load a tokenizer under a name that is free; raises Refusal or TokenizerError."""
        if self._load is None:
            raise Refusal("This server loads no further tokenizers.", status=403, code="forbidden")
        self._check_free(name)
        loaded = await asyncio.to_thread(self._load, source, name)
        self._check_free(name)  # again: another request may have taken it meanwhile
        self._by_name[name] = loaded
        self.generation += 1
        return loaded

    def _check_free(self, name: str) -> None:
        if name in self._by_name:
            hint = f"Remove it first: DELETE /v1/tokenizers/{name}"
            raise Refusal(
                f"A tokenizer {name!r} is loaded already.", status=409, param="name", code="exists", hint=hint
            )
        if len(self._by_name) >= self._limit:
            message = f"{self._limit} tokenizers are loaded, which is the limit."
            raise Refusal(message, code="too_many_tokenizers", hint="Remove one first.")

    def remove(self, name: str) -> None:
        """Forget a tokenizer; what it counted stays in the metrics."""
        loaded = self.find(name)
        self._removed.append(_counted(loaded))
        del self._by_name[name]
        self.generation += 1

    def samples(self) -> Iterator[Sample]:
        """The tokenizer cache's metrics, summed over all tokenizers."""
        live = [loaded.tokenizer.statistics() for loaded in self._by_name.values()]
        for layer in ("l0", "l1"):
            rows = [getattr(statistics, layer) for statistics in live]
            past = [row[layer] for row in self._removed]
            for name, labels, key in _LAYER_COUNTERS:
                total = sum(getattr(row, key) for row in rows) + sum(row[key] for row in past)
                yield name, (layer, *labels), total
            yield "tokenizer_cache_entries", (layer,), sum(row.entries for row in rows)
            yield "tokenizer_cache_bytes", (layer,), sum(row.bytes for row in rows)
        for key in _TOKEN_COUNTERS:
            total = sum(getattr(statistics, key) for statistics in live) + sum(row[key] for row in self._removed)
            yield f"tokenizer_{key}", (), total
        for loaded, statistics in zip(self._by_name.values(), live, strict=True):
            yield "tokenizer_encoder_fallbacks", (loaded.name,), statistics.encoder_fallbacks


_LAYER_COUNTERS = (
    ("tokenizer_cache_lookups", ("hit",), "hits"),
    ("tokenizer_cache_lookups", ("miss",), "misses"),
    ("tokenizer_cache_evictions", (), "evictions"),
    ("tokenizer_cache_reused_bytes", (), "reused_bytes"),
)
_TOKEN_COUNTERS = ("cached_tokens", "uncached_tokens")


def _counted(loaded: LoadedTokenizer) -> dict[str, Any]:
    """The final counts of a tokenizer that is about to be removed."""
    statistics = loaded.tokenizer.statistics()
    keys = [key for _, _, key in _LAYER_COUNTERS]
    counts: dict[str, Any] = {key: getattr(statistics, key) for key in _TOKEN_COUNTERS}
    for layer in ("l0", "l1"):
        counts[layer] = {key: getattr(getattr(statistics, layer), key) for key in keys}
    return counts


def answer_cache_memory(l0_max_memory: int) -> int:
    """The part of L0's bytes that ready answers of /v1/tokenize may take; texts and ids have the rest."""
    return l0_max_memory // 4
