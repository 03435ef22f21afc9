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
from foreword.diagnose.diff import is_newest
from foreword.diagnose.expected import Expected
from foreword.diagnose.likeness import is_same, text_of
from foreword.diagnose.notes import OutsideCause, add_note, expected_note
from foreword.diagnose.texts import common_prefix

_TAG = re.compile(r"</?[\w|]{1,24}[^\w]")
_ROLES = frozenset({"system", "developer"})
Kind = tuple[str, frozenset[str], str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Parts:
    """A request in the order it is rendered: tools, system text, turns; and the characters of each."""

    values: Sequence[Any]
    sizes: Sequence[int]

    @property
    def size(self) -> int:
        """Characters of all parts."""
        return sum(self.sizes)


def parts_of(document: Any, earlier: Parts | None = None) -> Parts:
    """The parts of a text or body; what is the same as ``earlier`` is not measured again."""
    values = [document] if isinstance(document, str) else [document.get("tools"), _system(document), *_turns(document)]
    same = same_parts(earlier.values, values) if earlier else 0
    known = list(earlier.sizes[:same]) if earlier else []
    return Parts(values, known + [len(text_of(value)) for value in values[same:]])


def _system(document: dict[str, Any]) -> Any:
    return document.get("system", document.get("instructions"))


def _turns(document: dict[str, Any]) -> list[Any]:
    turns: Any = next((document[key] for key in ("messages", "input", "prompt") if document.get(key)), [])
    return turns if isinstance(turns, list) else [turns]


def same_parts(a: Sequence[Any], b: Sequence[Any]) -> int:
    """How many parts two requests begin with alike."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low


def closeness(a: Parts, b: Parts) -> tuple[int, int]:
    """Orders earlier requests by the prefix they share with B: parts, then characters of the first part that differs."""
    same = same_parts(a.values, b.values)
    if same >= min(len(a.values), len(b.values)):
        return same, 0
    return same, common_prefix(text_of(a.values[same]), text_of(b.values[same]))


class Screen:
    """Knows which kinds of pairs the layout was seen to keep the prefix of. For one log, by one thread."""

    def __init__(self) -> None:
        self._harmless: set[object] = set()

    def look(self, a: Any, b: Any, *, same_session: bool | None = None) -> tuple[object, list[OutsideCause]] | None:
        """The pair's kind and what is worth a note, or None where a verdict is due."""
        if not (isinstance(a, dict) and isinstance(b, dict)):
            return None
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
        return _kind_of_pair(a, b, changes), notes

    def is_harmless(self, kind: object) -> bool:
        """Whether a pair of this kind was judged in full and nothing was found."""
        return kind in self._harmless

    def believe(self, kind: object) -> None:
        """Take pairs of this kind for harmless from now on."""
        self._harmless.add(kind)


def _appends(change: Change) -> bool:
    """Whether turns are added behind all others, none of them a system text that a template may put first."""
    return not any(isinstance(t, dict) and t.get("role") in _ROLES for t in change.b or ())


def _is_new_turn(change: Change, context: Context) -> bool:
    """Whether a change lies in A's last turn and is what a new turn is made of."""
    place = change.path[1] if len(change.path) > 1 and change.path[0] in {"messages", "input"} else None
    turns = _turns(context.a)
    return isinstance(place, int) and place >= len(turns) - 1 and is_newest(change, context)


def _kind_of_pair(a: dict[str, Any], b: dict[str, Any], changes: Sequence[Change]) -> object:
    mine, theirs = [_kind(turn) for turn in _turns(a)], [_kind(turn) for turn in _turns(b)]
    operations = frozenset((change.op, is_same(change.path[:1], ("messages",))) for change in changes)
    parameters = tuple(key for key in b if key not in {"messages", "input", "tools", "system"})
    return (
        bool(b.get("tools")),
        parameters,
        frozenset(mine),
        frozenset(theirs),
        tuple(mine[-2:]),
        tuple(theirs[-2:]),
        operations,
    )


def _kind(turn: Any) -> Kind:
    """What a template may look at in a turn: role, fields, shape of the content, tags in it."""
    if not isinstance(turn, dict):
        return "", frozenset(), type(turn).__name__, frozenset()
    content = turn.get("content")
    text = content if isinstance(content, str) else text_of(content)
    tags = frozenset(_TAG.findall(text)) if "<" in text else frozenset[str]()
    fields = frozenset(key for key, value in turn.items() if value)
    return str(turn.get("role") or turn.get("type")), fields, type(content).__name__, tags
