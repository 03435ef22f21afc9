"""Pairs of a log that need no verdict: B goes on from A, asks anew in A's newest turn, or opens another conversation.

Told from the bodies alone, so that a long log is neither rendered nor encoded where nothing is wrong. Whether the chat
template keeps such a pair's prefix depends on the kinds of its messages and not on their words: the first pair of each
kind is rendered and judged in full, and only what was found harmless is believed of the others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foreword.diagnose.causes import Context
from foreword.diagnose.changes import Change, changes_in, compare
from foreword.diagnose.conversations import is_one_conversation, is_system
from foreword.diagnose.expected import ANOTHER, Expected
from foreword.diagnose.faults import is_newest
from foreword.diagnose.likeness import is_same, text_of
from foreword.diagnose.notes import OutsideCause, add_note, expected_note
from foreword.diagnose.texts import common_prefix

_TAG = re.compile(r"</?[\w|]{1,24}[^\w]")
_ROLES = frozenset({"system", "developer"})
Values = Sequence[Any]
"""A request's parts in the order they are rendered: tools, system text, turns."""
Kind = tuple[str, frozenset[str], str, frozenset[str]]
"""What a template may look at in a turn: role, fields, shape of the content, tags in it."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a request, and the characters of each."""

    values: Values
    sizes: Sequence[int]

    @property
    def size(self) -> int:
        """Characters of all parts."""
        return sum(self.sizes)


def values_of(document: Any) -> Values:
    """The parts of a text or body."""
    return [document] if isinstance(document, str) else [document.get("tools"), _system(document), *_turns(document)]


def parts_of(values: Values, earlier: Parts | None = None, same: int = 0) -> Parts:
    """The parts with their sizes; the first ``same`` are ``earlier``'s and are not measured again."""
    known = list(earlier.sizes[:same]) if earlier else []
    return Parts(values, known + [len(text_of(value)) for value in values[len(known) :]])


def _system(document: dict[str, Any]) -> Any:
    return document.get("system", document.get("instructions"))


def _turns(document: dict[str, Any]) -> list[Any]:
    turns: Any = next((document[key] for key in ("messages", "input", "prompt") if document.get(key)), [])
    return turns if isinstance(turns, list) else [turns]


def same_parts(a: Values, b: Values) -> int:
    """How many parts two requests begin with alike."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low


def closest(earlier: Sequence[Parts], values: Values) -> tuple[int, int]:
    """Which of some requests, at least one, shares the longest prefix, the first of equals; and how many parts it shares.

    Parts count first, then the characters of the first part that differs.
    """
    most, tied = 0, list[int]()
    for index, other in enumerate(earlier):
        if other.values[:most] != values[:most]:
            continue
        same = same_parts(other.values, values)
        most, tied = (same, [index]) if same > most else (most, [*tied, index])
    if len(tied) == 1:
        return tied[0], most
    text = text_of(values[most]) if most < len(values) else ""
    return max(tied, key=lambda index: common_prefix(text_of([*earlier[index].values[most : most + 1]]), text)), most


@dataclass(frozen=True, slots=True)
class Passed:
    """A pair that needs no verdict if the layout keeps the prefix of its kind; None where no layout could break it."""

    kind: object | None
    notes: Sequence[OutsideCause]


class Screen:
    """Knows which kinds of pairs the layout was seen to keep the prefix of. For one log, by one thread."""

    def __init__(self) -> None:
        self._harmless: set[object] = set()
        self._kinds: dict[int, tuple[Any, Kind]] = {}

    def look(self, a: Any, b: Any, *, same_session: bool | None = None) -> Passed | None:
        """What is told of a pair that may pass, or None where a verdict is due."""
        if not (isinstance(a, dict) and isinstance(b, dict)):
            return None
        if _is_another_conversation(a, b, same_session=same_session):
            return Passed(None, (expected_note(ANOTHER),))
        changes = tuple(changes_in(compare(a, b)))
        context = Context(a, b, changes, same_session)
        expected = Expected(context, same_session=same_session)
        notes: list[OutsideCause] = []
        for change in changes:
            reason = expected.reason(change)
            if reason:
                add_note(notes, expected_note(reason))
            elif not (_appends(change) if change.op == "append" else _is_new_turn(change, context)):
                return None
        return Passed(self._kind_of_pair(a, b, changes), notes)

    def is_harmless(self, kind: object | None) -> bool:
        """Whether a pair of this kind was judged in full and nothing was found."""
        return kind is None or kind in self._harmless

    def believe(self, kind: object) -> None:
        """Take pairs of this kind for harmless from now on."""
        self._harmless.add(kind)

    def _kind_of_pair(self, a: dict[str, Any], b: dict[str, Any], changes: Sequence[Change]) -> object:
        mine, theirs = [self._kind(turn) for turn in _turns(a)], [self._kind(turn) for turn in _turns(b)]
        operations = frozenset((change.op, change.path[:1] == ("messages",)) for change in changes)
        parameters = tuple(key for key in b if key not in {"messages", "input", "tools", "system"})
        kinds = frozenset(mine), frozenset(theirs), tuple(mine[-2:]), tuple(theirs[-2:])
        return bool(b.get("tools")), parameters, kinds, operations

    def _kind(self, turn: Any) -> Kind:
        """The turn's kind; that of a turn seen before is known by the object."""
        known = self._kinds.get(id(turn))
        if known is None or known[0] is not turn:
            known = self._kinds[id(turn)] = turn, _kind(turn)
        return known[1]


def _is_another_conversation(a: dict[str, Any], b: dict[str, Any], *, same_session: bool | None) -> bool:
    """Whether all else is the same, and behind it stands another conversation as a whole."""
    key = next((key for key in ("messages", "input") if key in b), "")
    if not isinstance(a.get(key), list) or not isinstance(b[key], list):
        return False
    head = next((n for n, turn in enumerate(b[key]) if not is_system(turn)), len(b[key]))
    mine, theirs = a[key][head:], b[key][head:]
    if not (mine and theirs) or mine[0] is theirs[0] or any(map(is_system, mine + theirs)):
        return False
    is_same_head = list(a) == list(b) and is_same(a[key][:head], b[key][:head])
    if not is_same_head or is_one_conversation(mine, theirs, same_session=same_session):
        return False
    return all(field == key or is_same(a[field], b[field]) for field in a)


def _appends(change: Change) -> bool:
    """Whether turns are added behind all others, none of them a system text that a template may put first."""
    return not any(isinstance(t, dict) and t.get("role") in _ROLES for t in change.b or ())


def _is_new_turn(change: Change, context: Context) -> bool:
    """Whether a change lies in A's last turn and is what a new turn is made of."""
    place = change.path[1] if len(change.path) > 1 and change.path[0] in {"messages", "input"} else None
    turns = _turns(context.a)
    return isinstance(place, int) and place >= len(turns) - 1 and is_newest(change, context)


def _kind(turn: Any) -> Kind:
    if not isinstance(turn, dict):
        return "", frozenset(), type(turn).__name__, frozenset()
    content = turn.get("content")
    text = content if isinstance(content, str) else text_of(content)
    tags = frozenset(_TAG.findall(text)) if "<" in text else frozenset[str]()
    fields = frozenset(key for key, value in turn.items() if value)
    return str(turn.get("role") or turn.get("type")), fields, type(content).__name__, tags
