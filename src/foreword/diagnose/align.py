"""Which element of one list is which of another: the same place, another place, or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, Literal

from foreword.diagnose.likeness import is_alike
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


Aligned = tuple[Literal["pair", "gap"], int, int, int, int]
"""A pair of like elements or a run only one side has, as start and end in A and in B."""


def align(a: list[Any], b: list[Any], a_keys: list[str], b_keys: list[str], start: int) -> Iterator[Aligned]:
    """Pairs of like elements from place ``start`` on, where keys first differ, and runs that only one side has."""
    limit = min(len(a), len(b)) - start
    tail = common_prefix(a_keys[::-1][:limit], b_keys[::-1][:limit])
    for tag, *ends in _opcodes(a_keys[start : len(a) - tail], b_keys[start : len(b) - tail]):
        a0, a1, b0, b1 = (end + start for end in ends)
        if tag == "equal":
            yield from (("pair", i, i + 1, b0 + i - a0, b0 + i - a0 + 1) for i in range(a0, a1))
        elif tag == "replace":
            yield from _align_replaced(a, b, range(a0, a1), range(b0, b1))
        else:
            yield "gap", a0, a1, b0, b1
    yield from (("pair", len(a) - n, len(a) - n + 1, len(b) - n, len(b) - n + 1) for n in range(tail, 0, -1))


def _opcodes(a: Sequence[str], b: Sequence[str]) -> Sequence[tuple[str, int, int, int, int]]:
    """How the one becomes the other, as ``difflib`` says it; what is plain is said without it."""
    if a and b and (len(a) > 1 or len(b) > 1):
        return SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    tag = "replace" if a and b else "delete" if a else "insert"
    return [(tag, 0, len(a), 0, len(b))] if a or b else []


def _align_replaced(a: list[Any], b: list[Any], a_run: range, b_run: range) -> Iterator[Aligned]:
    """Within a replaced run: each element of A with the next like element of B, in order."""
    at = gap_b = b_run.start
    gap_a, a1, b1 = a_run.start, a_run.stop, b_run.stop
    for index in a_run:
        found = next((j for j in range(at, b1) if is_alike(a[index], b[j])), None)
        moved_with_the_end = found is not None and found > gap_b and index == len(a) - 1
        if found is None or moved_with_the_end:
            continue
        if index > gap_a or found > gap_b:
            yield "gap", gap_a, index, gap_b, found
        yield "pair", index, index + 1, found, found + 1
        at = gap_b = found + 1
        gap_a = index + 1
    if gap_a < a1 or gap_b < b1:
        yield "gap", gap_a, a1, gap_b, b1
