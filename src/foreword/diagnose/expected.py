"""What is no fault: a new conversation, a newer question, a summary in place of history."""

from __future__ import annotations

from typing import Any, Protocol

from foreword.diagnose.changes import Change
from foreword.diagnose.conversations import is_one_conversation, is_system, spoken

ANOTHER = "another conversation behind the same head"


class TwoRequests(Protocol):
    """Whatever holds an earlier request and a later one."""

    @property
    def a(self) -> Any:
        """The earlier one."""

    @property
    def b(self) -> Any:
        """The later one."""


class Expected:
    """What of one pair is expected; whether the two are of one conversation is found out once, when it is asked for."""

    def __init__(self, pair: TwoRequests, *, same_session: bool | None = None) -> None:
        self._pair = pair
        self._same_session = same_session
        self._is_one: dict[str, bool] = {}

    def reason(self, change: Change) -> str:
        """Why this change is nobody's fault, or ""."""
        pair = self._pair
        if (
            not isinstance(pair.b, dict)
            or change.path[:1] not in {("messages",), ("input",)}
            or _is_system(change, pair)
        ):
            return ""
        if not self._is_one_conversation(str(change.path[0])):
            return ANOTHER
        return "a branch from an earlier turn" if _is_branch(change, pair) else ""

    def _is_one_conversation(self, key: str) -> bool:
        if key not in self._is_one:
            a, b = (spoken(body.get(key)) for body in (self._pair.a, self._pair.b))
            self._is_one[key] = is_one_conversation(a, b, same_session=self._same_session)
        return self._is_one[key]


def is_in_newest_turn(change: Change, pair: TwoRequests) -> bool:
    """Whether a change lies in the last message of both requests."""
    return _is_in_last_of(pair.b, change) and _is_in_last_of(pair.a, change)


def _is_in_last_of(body: Any, change: Change) -> bool:
    turns = body.get(str(change.path[0])) if isinstance(body, dict) and len(change.path) > 1 else None
    return (
        change.path[:1] in {("messages",), ("input",)} and isinstance(turns, list) and change.path[1] == len(turns) - 1
    )


def _is_branch(change: Change, pair: TwoRequests) -> bool:
    """B's newest turn stands where A went on: an earlier turn was answered anew."""
    if change.op == "delete" and len(change.path) == 2:
        return change.b_at >= len(change.b_whole) - 1 and change.a_at + len(change.a) >= len(change.a_whole) - 1
    return (
        change.op != "delete"
        and _is_in_last_of(pair.b, change)
        and len(spoken(pair.a.get(str(change.path[0])))) > len(spoken(pair.b.get(str(change.path[0]))))
    )


def _is_system(change: Change, pair: TwoRequests) -> bool:
    body = pair.a if change.op == "delete" else pair.b
    turns = body.get(str(change.path[0]))
    at = change.path[1] if len(change.path) > 1 else None
    return isinstance(turns, list) and isinstance(at, int) and at < len(turns) and is_system(turns[at])
