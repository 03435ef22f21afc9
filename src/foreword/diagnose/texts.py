"""Where two texts differ: spans no wider than the value that changed, permuted lines kept as one span."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from foreword.diagnose.volatile import kind_of_change, squash

_ATOM = re.compile(r"[\w:./+@%&=?#~\\-]+|\s+|.", re.DOTALL)
_EDGE = 256
"""How far a span may reach back, in characters, to take in the whole of the value it cuts."""
_MANY_WORDS = 4000
_LONG_LINE = 4000
_JOIN_GAP = 8
_DENSE_GAP = 400
_DENSE_RUN = 3


@dataclass(frozen=True, slots=True)
class Hunk:
    """``a[a_start:a_end]`` became ``b[b_start:b_end]``; what lies between hunks is equal."""

    a_start: int
    a_end: int
    b_start: int
    b_end: int

    def shifted(self, a: int, b: int) -> Hunk:
        """The same hunk in a larger pair of texts."""
        return Hunk(self.a_start + a, self.a_end + a, self.b_start + b, self.b_end + b)


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """Length of the longest common prefix, by bisection on slices: each comparison is one memcmp for str and bytes."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def common_suffix(a: str, b: str, limit: int) -> int:
    """Length of the longest common suffix, at most ``limit``."""
    a, b = a[len(a) - limit :], b[len(b) - limit :]
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if a[limit - middle :] == b[limit - middle :]:
            low = middle
        else:
            high = middle - 1
    return low


def find_hunks(a: str, b: str) -> list[Hunk]:
    """The hunks that turn one text into the other, in order, each as narrow as a value and no narrower."""
    if a == b:
        return []
    start, a_end, b_end = _trim(a, b)
    inner = _line_hunks(a[start:a_end], b[start:b_end])
    hunks = [_narrow(hunk.shifted(start, start), a, b) for hunk in inner]
    if squash(a[start:a_end]) == squash(b[start:b_end]):
        return [_span(hunks)]
    return _join_dense(_join_near(hunks, a), a, b)


def _trim(a: str, b: str) -> tuple[int, int, int]:
    """Bounds of the middle that differs, widened to whole lines on both sides (to whole atoms where lines are long)."""
    start = common_prefix(a, b)
    tail = common_suffix(a, b, min(len(a), len(b)) - start)
    line = a.rfind("\n", 0, start) + 1
    atom = _atom_start(a, start) if start < len(a) else _atom_start(b, start)
    start = line if start - line < _LONG_LINE else atom
    line = a.find("\n", len(a) - tail) + 1 or len(a)
    if line - (len(a) - tail) < _LONG_LINE:
        tail = len(a) - line
    else:
        tail = max(0, tail - max(_atom_end(a, len(a) - tail), _atom_end(b, len(b) - tail)))
    return start, len(a) - tail, len(b) - tail


def _atom_start(text: str, at: int) -> int:
    """Where the atom that ``at`` cuts begins; whole lines behind it stay out."""
    base = max(0, at - _EDGE, text.rfind("\n", 0, at) + 1)
    for match in _ATOM.finditer(text, base, min(len(text), at + _EDGE)):
        if match.end() > at or (match.end() == at and not match.group().isspace()):
            return match.start()
    return at


def _atom_end(text: str, at: int) -> int:
    """How many characters past ``at`` belong to the atom it cuts."""
    if at in {0, len(text)} or not (_is_value(text[at - 1]) and _is_value(text[at])):
        return 0
    match = _ATOM.match(text, at, at + _EDGE)
    return match.end() - at if match else 0


def _is_value(character: str) -> bool:
    return character.isalnum() or character in "_:./+@%&=?#~\\-"


def _line_hunks(a: str, b: str) -> list[Hunk]:
    """Hunks by lines first, so that a permutation of lines is seen whole, then by words within changed lines."""
    a_lines, b_lines = a.splitlines(keepends=True), b.splitlines(keepends=True)
    if len(a_lines) <= 1 and len(b_lines) <= 1:
        return _word_hunks(a, b)
    opcodes = SequenceMatcher(None, a_lines, b_lines, autojunk=False).get_opcodes()
    a_at, b_at = _offsets(a_lines), _offsets(b_lines)
    hunks: list[Hunk] = []
    position = 0
    while position < len(opcodes):
        tag, a0, a1, b0, b1 = opcodes[position]
        position += 1
        if tag == "equal":
            continue
        end = _balanced(opcodes, position - 1, a_lines, b_lines)
        if end:
            _, _, a1, _, b1 = opcodes[end - 1]
            position = end
            hunks.append(Hunk(a_at[a0], a_at[a1], b_at[b0], b_at[b1]))
        else:
            x, y = a_at[a0], b_at[b0]
            hunks += [h.shifted(x, y) for h in _word_hunks(a[x : a_at[a1]], b[y : b_at[b1]])]
    return hunks


def _balanced(opcodes: Sequence[tuple[str, int, int, int, int]], first: int, a: list[str], b: list[str]) -> int:
    """End of the shortest run of opcodes from ``first`` that only reorders lines, or 0."""
    balance: Counter[str] = Counter()
    for end, (tag, a0, a1, b0, b1) in enumerate(opcodes[first:], first + 1):
        if tag == "equal":
            continue
        balance.update(line.rstrip("\r\n") for line in a[a0:a1])
        balance.subtract(line.rstrip("\r\n") for line in b[b0:b1])
        if not any(balance.values()):
            return end
    return 0


def _offsets(lines: list[str]) -> list[int]:
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line))
    return offsets


def _word_hunks(a: str, b: str) -> list[Hunk]:
    """Hunks by atoms: words, whole clocks, paths and URLs, runs of space, single marks."""
    a_words, b_words = _ATOM.findall(a), _ATOM.findall(b)
    if len(a_words) * len(b_words) > _MANY_WORDS**2 or not a or not b:
        return [Hunk(0, len(a), 0, len(b))]
    a_at, b_at = _offsets(a_words), _offsets(b_words)
    opcodes = SequenceMatcher(None, a_words, b_words, autojunk=False).get_opcodes()
    return [Hunk(a_at[a0], a_at[a1], b_at[b0], b_at[b1]) for tag, a0, a1, b0, b1 in opcodes if tag != "equal"]


_PART = re.compile(r"[=/?&]")


def _narrow(hunk: Hunk, a: str, b: str) -> Hunk:
    """Leave out what both sides begin with up to ``=``, ``/``, ``?`` or ``&``, and what they end with from ``/`` on."""
    left, right = a[hunk.a_start : hunk.a_end], b[hunk.b_start : hunk.b_end]
    if left and right and left[-1] == right[-1] and left[-1] in ".,;:!?":
        return _narrow(Hunk(hunk.a_start, hunk.a_end - 1, hunk.b_start, hunk.b_end - 1), a, b)
    if " " in left or "\n" in left:
        return hunk
    shared = common_prefix(left, right)
    head = max((match.end() for match in _PART.finditer(left, 0, shared)), default=0)
    tail = common_suffix(left, right, min(len(left), len(right)) - head)
    cut = left.find("/", len(left) - tail) if tail else -1
    tail = len(left) - cut if cut >= 0 else 0
    return Hunk(hunk.a_start + head, hunk.a_end - tail, hunk.b_start + head, hunk.b_end - tail)


def _join_near(hunks: list[Hunk], a: str) -> list[Hunk]:
    """One hunk for the parts of one value: a weekday, a day and a clock that changed together."""
    joined: list[Hunk] = []
    for hunk in hunks:
        gap = a[joined[-1].a_end : hunk.a_start] if joined else "\n"
        if joined and len(gap) <= _JOIN_GAP and "\n" not in gap:
            hunk = _span([joined.pop(), hunk])  # noqa: PLW2901 - the joined hunk takes the place of its last part
        joined.append(hunk)
    return joined


def _join_dense(hunks: list[Hunk], a: str, b: str) -> list[Hunk]:
    """One hunk for a table that changed in many places; clocks and other single values stay on their own."""
    joined: list[Hunk] = []
    for run in _runs(hunks, a, b):
        joined += [_span(run)] if len(run) > _DENSE_RUN else run
    return joined


def _runs(hunks: list[Hunk], a: str, b: str) -> Iterator[list[Hunk]]:
    run: list[Hunk] = []
    for hunk in hunks:
        kind = kind_of_change(a[hunk.a_start : hunk.a_end], b[hunk.b_start : hunk.b_end])
        alone = kind not in {None, "counter", "number", "path"}
        if run and (alone or hunk.a_start - run[-1].a_end > _DENSE_GAP):
            yield run
            run = []
        run.append(hunk)
        if alone:
            yield run
            run = []
    if run:
        yield run


def _span(hunks: list[Hunk]) -> Hunk:
    return Hunk(hunks[0].a_start, hunks[-1].a_end, hunks[0].b_start, hunks[-1].b_end)
