"""Where a text may be cut so that its ids are the ids of its parts. The certificate behind the prefix cache.

Write core(text) for the ids without template, truncation and padding. A tokenizer pipeline finds its added tokens in the
raw text first (leftmost, longest), then normalizes, pre-tokenizes and encodes each piece between them by itself. So two
kinds of cut c are certain, for every text that goes on in whatever way after them:

**After an added token** T whose match ends at c. What is left of T does not depend on what follows T, and what is right
of T is treated as it would be after T anywhere else::

    core(text) = core(text[:c]) ++ core(T + text[c:])[1:]

T stays in front of the rest because the pipeline can tell the start of a text from a piece behind a token (Metaspace
``prepend_scheme="first"``, a token that strips the space after it). It holds when T is matched in the raw text
(``normalized`` is false, or the normalizer is the identity and one scan finds what the two passes find), is
not ``single_word`` and not a special token that the tokenizer was told to encode as text. T is *stable*, its match the
same whatever follows, when no added token contains T and runs past its end: such a token would be the only way a match
that covers c could appear. Only stable tokens are cuts. All tokens take part in the scan: those that are no cuts still
consume text.

**Between two characters** x|y of plain text, when the pre-tokenizer always ends a piece between them and no added token
has x and y side by side inside it, so no match can ever cover the cut::

    core(text) = core(text[:c]) ++ core(text[c:])

Which pairs are safe depends on the pre-tokenizer's pattern; the patterns below were searched exhaustively over short
strings and fuzzed on real vocabularies. The cut asks for one character of lookahead: it holds only where y follows.

Whatever is not recognized has no cuts: the prefix cache switches itself off and the exact cache still works.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
from ahocorasick_rs import AhoCorasick, MatchKind

PLAIN = 0xFFFFFFFF
PLAIN_SPACING = 4096
_WINDOW = 1 << 16
_FEW_HEADS = 4  # beginnings of added tokens that are looked for one by one, in a fraction of a scan's time


class Cut(NamedTuple):
    """A point where the ids of a text divide.

    Attributes:
        end: characters of the text that must match before the cut may be used.
        overlap: how many of them the rest is encoded again with: the added token, or the character y of x|y.
        token: the id that the rest's ids start with and that is dropped; PLAIN for none.
        ids_before: how many ids the text has before the cut.
    """

    end: int
    overlap: int
    token: int
    ids_before: int = 0

    @property
    def resume(self) -> int:
        """Where the encoding of the rest starts."""
        return self.end - self.overlap

    @property
    def scan(self) -> int:
        """Where the search for further cuts starts."""
        return self.end if self.token != PLAIN else self.end - self.overlap


START = Cut(0, 0, PLAIN)


class Cuts:
    """Cuts in the order of the text, packed into 16 bytes each."""

    __slots__ = ("packed",)

    def __init__(self, packed: array[int] | None = None) -> None:
        self.packed = packed if packed is not None else array("I")

    def __len__(self) -> int:
        return len(self.packed) >> 2

    def __getitem__(self, index: int) -> Cut:
        at = 4 * (index if index >= 0 else index + len(self))
        return Cut(*self.packed[at : at + 4])

    def __iter__(self) -> Iterator[Cut]:
        packed = self.packed
        return (Cut(*packed[at : at + 4]) for at in range(0, len(packed), 4))

    def plain(self) -> list[int]:
        """The indexes of the cuts in plain text."""
        tokens = self.packed[2::4]
        return [index for index, token in enumerate(tokens) if token == PLAIN] if PLAIN in tokens else []

    def through(self, end: int) -> int:
        """How many cuts end at or before ``end``."""
        packed = self.packed
        if not packed or packed[-4] <= end:
            return len(packed) >> 2
        return bisect_right(range(len(packed) >> 2), end, key=lambda index: packed[4 * index])

    def part(self, start: int, stop: int | None = None) -> Cuts:
        """The cuts start..stop."""
        return Cuts(self.packed[4 * start : None if stop is None else 4 * stop])

    def after(self, end: int) -> Cuts:
        """The cuts that end past ``end``."""
        return self.part(self.through(end))

    def __add__(self, more: Cuts) -> Cuts:
        return Cuts(self.packed + more.packed)


class AddedToken(msgspec.Struct, frozen=True):
    """An entry of ``added_tokens`` in a tokenizer.json; tiktoken's special tokens are all plain ones."""

    id: int
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = False

    @property
    def is_bare(self) -> bool:
        """Whether its match is its own text, whatever stands around it."""
        return not (self.single_word or self.lstrip or self.rstrip)


_EVERYWHERE = (
    r"(?<=[A-Za-z0-9])(?=[ \t\r\n])|(?<=[!-~])(?=[ \t])"
    r"|(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])"
    r"|(?<=[A-Za-z0-9])(?=[!-&(-/:-@\[-`{-~])|(?<=[!-/:-@\[-`{-~])(?=[0-9])"
    r"|(?<=[\u4e00-\u9fa5])(?=[\uff0c\u3002\uff01\uff1f\uff1b\uff1a\u3001])"  # CJK | its comma, full stop, ...
)
GPT2_PAIRS = re.compile(_EVERYWHERE)
CL100K_PAIRS = re.compile(_EVERYWHERE + r"|(?<=[\r\n])(?=[!-~\u4e00-\u9fa5])")
O200K_PAIRS = re.compile(_EVERYWHERE + r"|(?<=[\r\n])(?=[!-.0-~\u4e00-\u9fa5])")


class Boundaries:
    """The certified cuts of one tokenizer.

    Attributes:
        cacheable: the same text always has the same ids (false for models that sample).
        one_scan: no pass over normalized text can find a token that the scan of the raw text does not know.
        reason: why there are no cuts; empty when there are.
    """

    def __init__(
        self,
        tokens: Iterable[AddedToken] = (),
        *,
        scanned: Sequence[AddedToken] = (),
        anchors: Iterable[AddedToken] = (),
        pairs: re.Pattern[str] | None = None,
        one_scan: bool = True,
        cacheable: bool = True,
        reason: str = "",
    ) -> None:
        """Certify cuts.

        Args:
            tokens: all added tokens, which plain cuts must keep clear of.
            scanned: those found together in one pass over the raw text.
            anchors: those of ``scanned`` that may be cuts when they are stable.
            pairs: the safe pairs x|y, as a pattern that matches emptily between them.
            one_scan: whether ``scanned`` stands for all passes over the text.
            cacheable: whether the same text always has the same ids.
            reason: why there can be no cuts.
        """
        self.cacheable = cacheable
        self.reason = reason
        self.one_scan = one_scan
        contents = list(dict.fromkeys(token.content for token in scanned))
        overrun = _overrun(contents)
        stable = {token.content: token.id for token in anchors if token.content not in overrun}
        self._cut_ids = [stable.get(content, PLAIN) for content in contents]
        self._longest = max(map(len, contents), default=0)
        self._heads = {content[:1] for content in contents}
        self._matcher = AhoCorasick(contents, matchkind=MatchKind.LeftmostLongest) if contents else None
        tokens = list(tokens)
        self._pairs = pairs if all(token.is_bare for token in tokens) else None
        self._inside = {pair for token in tokens for pair in _adjacent(token.content)}

    @property
    def certified(self) -> bool:
        """Whether ids may be put together from parts."""
        return not self.reason

    def cuts(self, text: str, start: int = 0) -> Cuts:
        """All cuts after added tokens and sparse ones in plain text, from a cut's ``scan`` on; ``ids_before`` still 0.

        A text with a lone surrogate has none: the encoder decides what to do about it.
        """
        found = Cuts()
        latest = gap = start
        cut_ids, keep = self._cut_ids, found.packed.extend
        try:
            for offset, matches in self._windows(text, start):
                for pattern, begin, end in matches:
                    if offset + begin - latest > PLAIN_SPACING:
                        stop = offset + begin
                        latest = self._cut_plain(text, max(gap + 1, latest + PLAIN_SPACING), stop, found, latest)
                    gap = offset + end
                    if (token := cut_ids[pattern]) != PLAIN:
                        keep((gap, end - begin, token, 0))
                        latest = gap
        except UnicodeEncodeError:
            return Cuts()
        if len(text) - latest > PLAIN_SPACING:
            self._cut_plain(text, max(gap + 1, latest + PLAIN_SPACING), len(text), found, latest)
        return found

    def _windows(self, text: str, start: int) -> Iterator[tuple[int, list[tuple[int, int, int]]]]:
        """Leftmost-longest matches from ``start`` on, window by window so that a flood of them stays small.

        Each window is its place in the text and the matches told from there. A match that starts in the first part of a
        window would be the same in the whole text; what starts later is scanned again.
        """
        if len(self._heads) <= _FEW_HEADS and text.isascii():  # any other text may have a lone surrogate
            heads = [at for head in self._heads if (at := text.find(head, start)) >= 0]
            start = min(heads, default=len(text))
        while self._matcher is not None and start < len(text):
            window = text[start : start + _WINDOW + self._longest]
            matches = self._matcher.find_matches_as_indexes(window)
            if start + len(window) == len(text):
                yield start, matches
                return
            sure = [match for match in matches if match[1] < _WINDOW]
            yield start, sure
            start += max(_WINDOW, sure[-1][2]) if sure else _WINDOW

    def _cut_plain(self, text: str, start: int, stop: int, found: Cuts, latest: int) -> int:
        """Cut plain text at the first safe pair at or after each spacing; returns where the last cut was."""
        while self._pairs is not None and (pair := self._pairs.search(text, start, stop)) is not None:
            at = pair.start()
            if text[at - 1 : at + 1] in self._inside:
                start = at + 1
                continue
            found.packed.extend((at + 1, 1, PLAIN, 0))
            latest, start = at, at + PLAIN_SPACING
        return latest


def _overrun(contents: Sequence[str]) -> set[str]:
    """The contents that occur in another one and not only at its end."""
    known = set(contents)
    lengths = sorted({len(content) for content in contents})
    return {
        part
        for content in contents
        for size in lengths[: bisect_left(lengths, len(content))]
        for at in range(len(content) - size)
        if (part := content[at : at + size]) in known
    }


def needs_two_scans(raw: Sequence[AddedToken], late: Sequence[AddedToken]) -> bool:
    """Whether one leftmost-longest scan for both could differ from a scan for ``raw`` and then one of what is left.

    Only where a match of ``late`` could start no later than one of ``raw`` and reach into it, or where a token of ``raw``
    takes the space around it, which one of ``late`` may be made of.
    """
    if late and any(token.lstrip or token.rstrip for token in raw):
        return True
    first, second = [token.content for token in raw], [token.content for token in late]
    tails = {content[at:] for content in second for at in range(len(content))}
    heads = {content[:size] for content in first for size in range(1, len(content) + 1)}
    return bool(heads & tails) or _contains(second, first)


def is_overlap_free(contents: Iterable[str]) -> bool:
    """Whether no two matches could share a character: then it does not matter in which order they are looked for."""
    contents = list(contents)
    heads = {content[:size] for content in contents for size in range(1, len(content))}
    tails = {content[at:] for content in contents for at in range(1, len(content))}
    inside = {
        content[at:end] for content in contents for at in range(len(content)) for end in range(at + 1, len(content))
    }
    return not heads & tails and not (inside | tails) & set(contents)


def _contains(outer: Iterable[str], inner: Iterable[str]) -> bool:
    known, sizes = set(inner), {len(content) for content in inner}
    return any(
        content[at : at + size] in known for content in outer for size in sizes for at in range(len(content) - size + 1)
    )


def _adjacent(content: str) -> set[str]:
    """The pairs of characters side by side in a token, in its normalized form too."""
    forms = (content, unicodedata.normalize("NFC", content))
    return {form[at : at + 2] for form in forms for at in range(len(form) - 1)}


def pieces(text: str, start: int, cuts: Cuts) -> list[str]:
    """The text from ``start`` on, divided at its plain cuts."""
    plain = cuts.plain()
    if not plain:
        return [text[start:]]
    packed = cuts.packed
    edges = [start, *(packed[4 * index] - packed[4 * index + 1] for index in plain), len(text)]
    return [text[begin:end] for begin, end in itertools.pairwise(edges)]


def count_ids(cuts: Cuts, encoded: Sequence[bytes], count: int) -> Cuts:
    """The cuts with their ``ids_before``, given the uint32 ids of the pieces between plain cuts and the count before them.

    Every match of a token gives its id once. So when a piece has as many of these ids as its text has matches, each id
    stands for its match; when it has more, the model made some of them out of plain text, and the piece's cuts go.
    """
    plains = cuts.plain()
    if not plains:
        return _count_tokens(cuts, encoded[0], count)
    if len(plains) == len(cuts):
        reached = itertools.accumulate((len(ids) >> 2 for ids in encoded[:-1]), initial=count)
        cuts.packed[3::4] = array("I", reached)[1:]
        return cuts
    counted, start = Cuts(), 0
    for ids, plain in itertools.zip_longest(encoded, plains):
        counted += _count_tokens(cuts.part(start, plain), ids, count)
        count += len(ids) >> 2
        if plain is not None:
            counted.packed.extend(cuts[plain]._replace(ids_before=count))
            start = plain + 1
    return counted


def _count_tokens(cuts: Cuts, ids: bytes, count: int) -> Cuts:
    tokens = cuts.packed[2::4]
    wanted = set(tokens)
    row = memoryview(ids).cast("I").tolist() if wanted else []
    places = [place for place, token in enumerate(row, count + 1) if token in wanted]
    if len(places) != len(tokens):
        return Cuts()
    cuts.packed[3::4] = array("I", places)
    return cuts
