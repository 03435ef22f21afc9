"""Which element of one list is which of another: the same place, another place, or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, Literal

from foreword.diagnose.likeness import is_alike, is_same
from foreword.diagnose.texts import common_prefix


def is_permutation(a_keys: Sequence[str], b_keys: Sequence[str]) -> bool:
    """The same elements in another order, one or two of them more or fewer forgiven when there are names."""
    if len(a_keys) == len(b_keys) and a_keys != b_keys and Counter(_moved(a_keys)) == Counter(_moved(b_keys)):
        return True
    return _is_named_permutation(a_keys, b_keys)


def _moved(keys: Sequence[str]) -> list[str]:
    """Keys of elements that are not the same in the same place: those are ``#place`` on both sides."""
    return [key for key in keys if key[0] != "#"]


def _is_named_permutation(a_keys: Sequence[str], b_keys: Sequence[str]) -> bool:
    if not all(key.startswith(("name:", "#")) for key in (*a_keys[::-1], *b_keys[::-1])):
        return False
    shared = set(a_keys) & set(b_keys)
    return len(shared) > 1 and [k for k in a_keys if k in shared] != [k for k in b_keys if k in shared]


def same_runs(a: list[Any], b: list[Any]) -> list[range]:
    """The places where both have the same element, spelled the same, as runs; found by leaps, since most are the same."""
    runs: list[range] = []
    left = [(0, min(len(a), len(b)))]
    while left:
        low, high = left.pop()
        if low == high:
            continue
        if is_same(a[low:high], b[low:high]):
            start = runs.pop().start if runs and runs[-1].stop == low else low
            runs.append(range(start, high))
        elif high - low > 1:
            middle = low + 1 if low == 0 else (low + high) // 2
            left += [(middle, high), (low, middle)]
    return runs


Aligned = tuple[Literal["same", "pair", "gap"], int, int, int, int]
"""A run of the same elements, a pair of like ones, or a run only one side has, as start and end in A and in B."""


def align(a: list[Any], b: list[Any], a_keys: list[str], b_keys: list[str], runs: Sequence[range]) -> Iterator[Aligned]:
    """How elements of two lists belong together; a run that is the same and half of the list is where they are held."""
    anchor = max(runs, key=len, default=range(0))
    if 2 * len(anchor) < min(len(a), len(b)):
        anchor = range(0)
    keys = a_keys, b_keys
    yield from _align_stretch(a, b, keys, range(anchor.start), range(anchor.start))
    if anchor:
        yield "same", anchor.start, anchor.stop, anchor.start, anchor.stop
    yield from _align_stretch(a, b, keys, range(anchor.stop, len(a)), range(anchor.stop, len(b)))


def _align_stretch(
    a: list[Any], b: list[Any], keys: tuple[list[str], list[str]], x: range, y: range
) -> Iterator[Aligned]:
    """Pairs and gaps of one stretch of each list: what both begin and end with, then what ``difflib`` says."""
    a_keys, b_keys = keys[0][x.start : x.stop], keys[1][y.start : y.stop]
    head = common_prefix(a_keys, b_keys)
    limit = min(len(a_keys), len(b_keys)) - head
    tail = common_prefix(a_keys[::-1][:limit], b_keys[::-1][:limit])
    yield from _pairs(x.start, y.start, head)
    opcodes = _opcodes(a_keys[head : len(a_keys) - tail], b_keys[head : len(b_keys) - tail])
    for tag, *ends in opcodes:
        a0, a1, b0, b1 = (end + head + at for end, at in zip(ends, (x.start, x.start, y.start, y.start), strict=True))
        if tag == "equal":
            yield from _pairs(a0, b0, a1 - a0)
        elif tag == "replace":
            yield from _align_replaced(a, b, range(a0, a1), range(b0, b1))
        else:
            yield "gap", a0, a1, b0, b1
    yield from _pairs(x.stop - tail, y.stop - tail, tail)


def _pairs(x: int, y: int, count: int) -> Iterator[Aligned]:
    return (("pair", x + n, x + n + 1, y + n, y + n + 1) for n in range(count))


def _opcodes(a: Sequence[str], b: Sequence[str]) -> Sequence[tuple[str, int, int, int, int]]:
    """How the one becomes the other, as ``difflib`` says it; what is plain is said without it."""
    if a and b and (len(a) > 1 or len(b) > 1):
        return SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    tag = "replace" if a and b else "delete" if a else "insert"
    return [(tag, 0, len(a), 0, len(b))] if a or b else []


def _align_replaced(a: list[Any], b: list[Any], a_run: range, b_run: range) -> Iterator[Aligned]:
    """Within a replaced run: each element of A with the next like element of B, in order; A's last with B's next alone.

    What stands behind all else in A and further on in B moved along with the end, and is put in anew each time.
    """
    gap_a, gap_b, b1 = a_run.start, b_run.start, b_run.stop
    for index in a_run:
        end = b1 if index < len(a) - 1 else min(gap_b + 1, b1)
        found = next((j for j in range(gap_b, end) if is_alike(a[index], b[j])), None)
        if found is None:
            continue
        if index > gap_a or found > gap_b:
            yield "gap", gap_a, index, gap_b, found
        yield "pair", index, index + 1, found, found + 1
        gap_a, gap_b = index + 1, found + 1
    if gap_a < a_run.stop or gap_b < b1:
        yield "gap", gap_a, a_run.stop, gap_b, b1
