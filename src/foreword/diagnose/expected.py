"""What is no fault: a new conversation, a newer question, a summary in place of history."""

from __future__ import annotations

from typing import Any, Protocol

from foreword.diagnose.changes import Change
from foreword.diagnose.likeness import is_alike, sorted_json


class TwoRequests(Protocol):
    """Whatever holds an earlier request and a later one."""

    @property
    def a(self) -> Any:
        """The earlier one."""

    @property
    def b(self) -> Any:
        """The later one."""


def is_expected(change: Change, pair: TwoRequests) -> str:
    """Why this change is nobody's fault, or ""."""
    if not isinstance(pair.b, dict) or change.path[:1] not in {("messages",), ("input",)}:
        return ""
    a, b = (_turns(body, str(change.path[0])) for body in (pair.a, pair.b))
    if _is_system(change, pair):
        return ""
    if not _share_a_turn(a, b):
        return "another conversation behind the same head"
    return "a branch from an earlier turn" if _is_branch(change, pair) else ""


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
        and len(_turns(pair.a, str(change.path[0]))) > len(_turns(pair.b, str(change.path[0])))
    )


def _turns(body: Any, key: str) -> list[Any]:
    turns = body.get(key)
    turns = turns if isinstance(turns, list) else [{"role": "user", "content": turns}]
    return [turn for turn in turns if not (isinstance(turn, dict) and str(turn.get("role")) in {"system", "developer"})]


def _is_system(change: Change, pair: TwoRequests) -> bool:
    body = pair.a if change.op == "delete" else pair.b
    turns = body.get(str(change.path[0]))
    at = change.path[1] if len(change.path) > 1 else None
    turn = turns[at] if isinstance(turns, list) and isinstance(at, int) and at < len(turns) else None
    return isinstance(turn, dict) and str(turn.get("role")) in {"system", "developer"}


def _share_a_turn(a: list[Any], b: list[Any]) -> bool:
    """Whether any turn of A, equal or edited, is still in B. A question alone does not make a conversation."""
    if not a or not b:
        return False
    if any(x == y for x, y in zip(a, b, strict=False)) or not {*map(sorted_json, a)}.isdisjoint(map(sorted_json, b)):
        return True
    return any(is_alike(x, y) for x, y in zip(a[:4], b[:4], strict=False))
