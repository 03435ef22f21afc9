"""CachedTokenizer: always the uncached ids, as near to free as memory allows."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import Literal, NamedTuple

from foreword.errors import InputTooLarge
from foreword.tokens.boundaries import PLAIN, Cuts, count_ids, pieces
from foreword.tokens.cache_statistics import CacheStatistics, LevelStatistics
from foreword.tokens.exact_cache import Entry, ExactCache, L0Config, fingerprint
from foreword.tokens.prefix_trie import NO_MATCH, L1Config, Match, PrefixTrie
from foreword.tokens.tokenizer import CacheableTokenizer, SpecialTokens, TokenIds, TokenizerIdentity

MAX_CHARACTERS = 1 << 26
SHORT = 2048  # characters that are cheaper to encode twice than to wait for, and to set aside than to branch for
Layer = Literal["l0", "l1"]
_Context = tuple[object, bool, str]


class Encoded:
    """The ids of one call, and where they came from.

    Attributes:
        ids: the reference's ids.
        cached_tokens: how many of them came from a cache.
        layer: the level that hit; None for a miss.
    """

    __slots__ = ("cached_tokens", "entry", "ids", "layer")

    def __init__(self, ids: TokenIds, cached_tokens: int, layer: Layer | None, entry: Entry | None = None) -> None:
        self.ids = ids
        self.cached_tokens = cached_tokens
        self.layer = layer
        self.entry = entry

    @property
    def rendered(self) -> bytes | None:
        """What ``CachedTokenizer.keep_rendered`` put beside the ids, if it is still there."""
        return self.entry.rendered if self.entry is not None else None

    def __repr__(self) -> str:
        return f"Encoded({self.ids!r}, cached_tokens={self.cached_tokens}, layer={self.layer!r})"


class _Call(NamedTuple):
    """One input that L0 does not know, what L1 knows of it, and when that was.

    Attributes:
        text, context: the input, and all else that its ids depend on.
        key: the fingerprint of both; None when nothing needs it.
        match: its longest cached beginning.
        generation: which of the tokenizer's encoders the match came from.
    """

    text: str
    context: _Context
    key: int | None
    match: Match
    generation: int


class _Flight:
    """A long encoding under way, and what those who wait for it will get."""

    __slots__ = ("call", "encoded", "error", "key", "landed")

    def __init__(self, call: _Call, key: int) -> None:
        self.call = call
        self.key = key
        self.landed: threading.Event | None = None
        self.encoded: Encoded | None = None
        self.error: BaseException | None = None


class _Computed(NamedTuple):
    """The ids of a text, and what the prefix cache may keep of them.

    Attributes:
        ids: all of them.
        core: those without template, truncation and padding.
        match: the beginning that was known.
        cuts: the certified cuts behind the match.
        short: the ids behind it, if they are few and the cuts still uncounted.
    """

    ids: TokenIds
    core: bytes = b""
    match: Match = NO_MATCH
    cuts: Cuts = Cuts()
    short: bytes | None = None


class CachedTokenizer:
    """A tokenizer behind an exact cache (L0) and a prefix cache (L1). Thread-safe.

    Every call returns exactly what ``tokenizer.encode`` would. Where that is not certain a level is off for this
    tokenizer: ``tokenizer.boundaries`` says why. Concurrent calls for one text encode what is long of it once.
    """

    def __init__(
        self,
        tokenizer: CacheableTokenizer,
        l0: L0Config | None = None,
        l1: L1Config | None = None,
        *,
        max_characters: int = MAX_CHARACTERS,
    ) -> None:
        self.tokenizer = tokenizer
        self.max_characters = max_characters
        self._exact = ExactCache(l0) if l0 is not None and tokenizer.boundaries.cacheable else None
        has_cuts = tokenizer.boundaries.cacheable and tokenizer.boundaries.certified
        self._prefix = PrefixTrie(l1) if l1 is not None and has_cuts else None
        self._lock = threading.Lock()
        self._flights: dict[int, _Flight] = {}
        self._generation = tokenizer.encoder_fallbacks
        self._hits = {"l0": 0, "l1": 0}
        self._misses = {"l0": 0, "l1": 0}
        self._reused = {"l0": 0, "l1": 0}
        self._cached_tokens = 0
        self._uncached_tokens = 0
        self._shared = 0

    @property
    def identity(self) -> TokenizerIdentity:
        """Who the tokenizer is."""
        return self.tokenizer.identity

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return self.tokenizer.vocab_size

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of the ids; raises TokenizerError for an id outside the vocabulary."""
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def token_to_id(self, token: str) -> int | None:
        """The id of a token's exact string, or None."""
        return self.tokenizer.token_to_id(token)

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's string for an id, or None."""
        return self.tokenizer.id_to_token(token_id)

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = False,
        allowed_special: SpecialTokens | None = None,
        disallowed_special: SpecialTokens | None = None,
        tenant: str = "",
    ) -> TokenIds:
        """The reference's ids for the text.

        Args:
            text: at most ``max_characters`` characters.
            add_special_tokens: put the template's tokens (BOS, EOS) around it.
            allowed_special: tiktoken: the special tokens to recognize; None for all.
            disallowed_special: tiktoken: the special tokens to refuse; None for none.
            tenant: who asks. Tenants never share an entry, and each has a quota when the levels have one.

        Raises:
            InputTooLarge: the text is over the limit.
            SpecialTokenNotAllowed: the text holds a disallowed special token.
            TokenizerError: the tokenizer refuses the text.
        """
        return self.encode_with_usage(
            text,
            add_special_tokens=add_special_tokens,
            allowed_special=allowed_special,
            disallowed_special=disallowed_special,
            tenant=tenant,
        ).ids

    def encode_with_usage(
        self,
        text: str,
        *,
        add_special_tokens: bool = False,
        allowed_special: SpecialTokens | None = None,
        disallowed_special: SpecialTokens | None = None,
        tenant: str = "",
    ) -> Encoded:
        """As ``encode``, and how many of the ids came from a cache, and from which."""
        tokenizer = self.tokenizer
        if allowed_special is not None or disallowed_special is not None:
            tokenizer = tokenizer.with_special_tokens(allowed_special, disallowed_special)
        context = (tokenizer.key, add_special_tokens, tenant)
        key = fingerprint(text, context) if self._exact is not None else None
        flight = None
        with self._lock:
            self._forget_doubtful()
            if key is not None and (entry := self._lookup(text, context, key)) is not None:
                return Encoded(entry.ids, len(entry.ids), "l0", entry)
            call = _Call(text, context, key, self._match(text, context), self._generation)
            if len(text) - call.match.cut.end > SHORT:
                flight, leads = self._board(call)
        if flight is None:
            return self._encode(call, tokenizer)
        return self._lead(flight, tokenizer) if leads else self._follow(flight)

    def keep_rendered(self, encoded: Encoded, rendered: bytes) -> bool:
        """Keep a ready answer beside the ids of a call, counted in L0's budget; False when there is no room for it.

        Later hits of the same input give it back as ``encoded.rendered``.
        """
        if self._exact is None or encoded.entry is None:
            return False
        with self._lock:
            return self._exact.keep_rendered(encoded.entry, rendered)

    def statistics(self) -> CacheStatistics:
        """A snapshot of all counters."""
        with self._lock:
            return CacheStatistics(
                l0=self._level("l0", self._exact),
                l1=self._level("l1", self._prefix),
                cached_tokens=self._cached_tokens,
                uncached_tokens=self._uncached_tokens,
                shared=self._shared,
                encoder_fallbacks=self.tokenizer.encoder_fallbacks,
            )

    def clear(self) -> None:
        """Forget all cached ids; the counters go on."""
        with self._lock:
            self._forget()

    def check_integrity(self) -> None:
        """Raise RuntimeError when a level's structure or sums are wrong."""
        with self._lock:
            for level in (self._exact, self._prefix):
                if level is not None:
                    level.check_integrity()

    def _forget_doubtful(self) -> None:
        """Forget everything once an encoder has been given up: any ids may be its."""
        if self._generation != self.tokenizer.encoder_fallbacks:
            self._generation = self.tokenizer.encoder_fallbacks
            self._forget()

    def _forget(self) -> None:
        for level in (self._exact, self._prefix):
            if level is not None:
                level.clear()

    def _level(self, layer: Layer, level: ExactCache | PrefixTrie | None) -> LevelStatistics:
        if level is None:
            return LevelStatistics()
        counts = self._hits[layer], self._misses[layer], len(level), level.memory, level.evictions
        return LevelStatistics(*counts, self._reused[layer])

    def _lookup(self, text: str, context: _Context, key: int) -> Entry | None:
        if self._exact is None:
            return None
        entry = self._exact.get(text, context, key)
        if entry is None:
            self._misses["l0"] += 1
            return None
        self._hits["l0"] += 1
        self._reused["l0"] += entry.text_bytes
        self._cached_tokens += len(entry.ids)
        return entry

    def _match(self, text: str, context: _Context) -> Match:
        if self._prefix is None:
            return NO_MATCH
        return self._prefix.match((context[0], context[2]), text)

    def _board(self, call: _Call) -> tuple[_Flight, bool]:
        """The encoding of this text that is under way, or a new one to be led."""
        key = fingerprint(call.text, call.context) if call.key is None else call.key
        flight = self._flights.get(key)
        if flight is not None and flight.call.context == call.context and flight.call.text == call.text:
            flight.landed = flight.landed or threading.Event()
            self._shared += 1
            return flight, False
        flight = _Flight(call, key)
        self._flights.setdefault(key, flight)
        return flight, True

    def _follow(self, flight: _Flight) -> Encoded:
        if flight.landed is not None:
            flight.landed.wait()
        if flight.error is not None:
            raise flight.error
        encoded = flight.encoded
        if encoded is None:
            raise RuntimeError("an encoding landed without ids")
        with self._lock:
            self._cached_tokens += len(encoded.ids)
        return Encoded(encoded.ids, len(encoded.ids), encoded.layer, encoded.entry)

    def _lead(self, flight: _Flight, tokenizer: CacheableTokenizer) -> Encoded:
        try:
            flight.encoded = self._encode(flight.call, tokenizer)
        except BaseException as error:
            flight.error = error
            raise
        else:
            return flight.encoded
        finally:
            with self._lock:
                if self._flights.get(flight.key) is flight:
                    del self._flights[flight.key]
                if flight.landed is not None:
                    flight.landed.set()

    def _encode(self, call: _Call, tokenizer: CacheableTokenizer) -> Encoded:
        """Encode what no cache knows, and remember it."""
        size = len(call.text)
        if size > self.max_characters:
            raise InputTooLarge(
                f"The text has {size} characters; at most {self.max_characters} are tokenized.",
                hint="Send less text.",
                limit=self.max_characters,
                size=size,
            )
        tokenizer.check(call.text)
        while True:
            computed = self._compute(call, tokenizer)
            with self._lock:
                self._forget_doubtful()
                if call.generation == self._generation:
                    return self._remember(call, computed)
                call = call._replace(match=NO_MATCH, generation=self._generation)

    def _compute(self, call: _Call, tokenizer: CacheableTokenizer) -> _Computed:
        text, (_, add_special_tokens, _) = call.text, call.context
        if not tokenizer.boundaries.certified:
            return _Computed(tokenizer.encode(text, add_special_tokens=add_special_tokens))
        match, cuts = self._known(call, tokenizer)
        match, cuts, encoded = encode_after(tokenizer, text, match, cuts)
        core = b"".join([*match.chunks, *encoded])
        ids = TokenIds(tokenizer.assemble(core, add_special_tokens=add_special_tokens))
        if len(encoded) == 1 and len(text) - match.cut.end <= SHORT:
            return _Computed(ids, core, match, cuts, encoded[0])
        return _Computed(ids, core, match, count_ids(cuts, encoded, match.cut.ids_before))

    def _known(self, call: _Call, tokenizer: CacheableTokenizer) -> tuple[Match, Cuts]:
        """What is cached of a text, with what was set aside of it, and the cuts in the rest."""
        text, match = call.text, call.match
        if self._prefix is None:
            return match, Cuts()
        cuts = tokenizer.boundaries.cuts(text, match.cut.scan)
        while (tail := self._prefix.waiting(match, text, cuts)) is not None:
            with self._lock:
                match = self._prefix.admit((call.context[0], call.context[2]), text, match, tail)
            cuts = cuts.after(match.cut.end)
        return match, cuts

    def _remember(self, call: _Call, computed: _Computed) -> Encoded:
        text, context, key, *_ = call
        ids, match = computed.ids, computed.match
        layer: Layer | None = "l1" if match.cut.end else None
        count = len(ids)
        cached = min(match.cut.ids_before, count)
        self._cached_tokens += cached
        self._uncached_tokens += count - cached
        if self._prefix is not None:
            (self._hits if layer else self._misses)["l1"] += 1
            self._reused["l1"] += match.text_bytes
            if computed.cuts.packed:
                _store(self._prefix, call, computed)
        exact = self._exact
        entry = exact.put(text, context, context[2], key, ids) if exact is not None and key is not None else None
        return Encoded(ids, cached, layer, entry)


def _store(prefix: PrefixTrie, call: _Call, computed: _Computed) -> None:
    """Keep what is new of a text: a few words are set aside, more goes into the tree."""
    (view, _, tenant), text, match, cuts = call.context, call.text, computed.match, computed.cuts
    if computed.short is not None:
        if prefix.set_aside(match, text, computed.short, cuts):
            return
        cuts = count_ids(cuts, [computed.short], match.cut.ids_before)
    prefix.store((view, tenant), text, computed.core, cuts, match)


def encode_after(
    tokenizer: CacheableTokenizer, text: str, match: Match, cuts: Cuts
) -> tuple[Match, Cuts, Sequence[bytes]]:
    """The core ids of what follows a match, piece by piece between the plain ones of the cuts in it.

    The rest is encoded from the cut's ``resume`` on. Behind an added token that is the token itself, whose id the rest
    must start with and loses. If it does not, the match is given up (the certificate says that this cannot happen).
    """
    cut = match.cut
    encoded = tokenizer.encode_core(pieces(text, cut.resume, cuts))
    if cut.token == PLAIN:
        return match, cuts, encoded
    first = encoded[0]
    if int.from_bytes(first[:4], sys.byteorder) != cut.token:
        return encode_after(tokenizer, text, NO_MATCH, tokenizer.boundaries.cuts(text))
    return match, cuts, [first[4:], *encoded[1:]]
