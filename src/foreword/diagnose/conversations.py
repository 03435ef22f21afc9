"""Whether two requests are of one conversation, where the log does not say so.

Conversations of one application are alike: the same opening words around another question, answers in one form. So likeness
alone proves nothing. What proves it is a turn that only this conversation can have: a long one that is in both, a question
with its reply, or the same opening.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from foreword.diagnose.likeness import has_same_ids, is_alike, is_equal, similarity, sorted_json, text_fields, text_of
from foreword.diagnose.volatile import squash

_OWN = 40
"""Characters from which an equal turn is taken for one and the same: shorter ones ("Go on.", a label) are said in any."""
_EDITED = 0.75
"""Likeness from which one turn is an edited form of another, and not another turn of the same form."""
_OPENING = 4
"""Turns that are held against one another where none is equal."""
_SYSTEM = ("system", "developer")  # a tuple: a role may be anything, lists included

Turns = Sequence[Any]


def spoken(turns: Any) -> list[Any]:
    """The turns of a conversation: all but system texts."""
    turns = turns if isinstance(turns, list) else [{"role": "user", "content": turns}]
    return [turn for turn in turns if not is_system(turn)]


def is_system(turn: Any) -> bool:
    """Whether a turn is a system text."""
    return isinstance(turn, dict) and turn.get("role") in _SYSTEM


def is_one_conversation(a: Turns, b: Turns, *, same_session: bool | None = None) -> bool:
    """Whether A's turns, equal or edited, are still in B.

    Args:
        a: the earlier request's turns, system texts left out.
        b: the later one's.
        same_session: what the log says; where it says yes, any likeness is enough.
    """
    if not a or not b:
        return False
    if _says_the_same(a[0], b[0]) or _shares_own_turns(a, b):
        return True
    opening = list(zip(a[:_OPENING], b[:_OPENING], strict=False))
    if same_session:
        return any(x == y or is_alike(x, y) for x, y in opening)
    return _is_edited_opening(opening)


def _shares_own_turns(a: Turns, b: Turns) -> bool:
    """Whether an equal turn is in both that no other conversation has: a long one, or two that follow one another."""
    known = {*map(sorted_json, b)}
    shared = [sorted_json(turn) in known for turn in a]
    if any(is_known and len(text_of(turn)) >= _OWN for turn, is_known in zip(a, shared, strict=True)):
        return True
    if not any(first and second for first, second in pairwise(shared)):
        return False
    runs = {*pairwise(map(sorted_json, b))}
    return any(run in runs for run in pairwise(map(sorted_json, a)))


def _is_edited_opening(opening: Sequence[tuple[Any, Any]]) -> bool:
    """Whether an edited reply is in both; of two requests without replies, an edited question."""
    replies = [pair for pair in opening if not any(_role(turn) == "user" for turn in pair)]
    told = [(a, b) for a, b in replies if has_same_ids(a, b) or max(len(text_of(a)), len(text_of(b))) >= _OWN]
    return any(_is_edited(*pair) for pair in (told if replies else opening))


def _role(turn: Any) -> str:
    return str(turn.get("role", "")) if isinstance(turn, dict) else "user"


def _says_the_same(a: Any, b: Any) -> bool:
    """Whether two turns have one role and look the same to a reader, in whatever shape they were sent."""
    return bool(a == b) or (_role(a) == _role(b) and squash(text_of(a)) == squash(text_of(b)) != "")


def _is_edited(a: Any, b: Any) -> bool:
    """Whether one turn is the other, changed: the same call, the same text in another shape, nearly all of the words."""
    if not (isinstance(a, dict) and isinstance(b, dict)):
        return type(a) is type(b) and similarity(str(a), str(b)) >= _EDITED
    if any(a.get(key) != b.get(key) for key in ("role", "type")):
        return False
    if has_same_ids(a, b) or is_equal(text_fields(a), text_fields(b)):
        return True
    left, right = text_of(a), text_of(b)
    return similarity(left, right) >= _EDITED or _is_part(*sorted((left, right), key=len))


def _is_part(short: str, long: str) -> bool:
    """Whether a text is in another one, which something was put around: a short text as its first or last lines."""
    if len(short) >= _OWN:
        return short in long
    return bool(short) and (long.startswith(f"{short}\n") or long.endswith(f"\n{short}"))
