"""B: the same content in another order, spelling or shape."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from foreword.diagnose.causes.table import Context, Verdict
from foreword.diagnose.changes import Change
from foreword.diagnose.layout import format_path
from foreword.diagnose.likeness import canonical, text_of

_EMPTY: tuple[Any, ...] = ("", [], {}, None)


def order(change: Change, context: Context) -> Verdict | None:
    """B1: a permutation of a JSON list, of the lines of a text, or of items between commas; a tool that came or went."""
    if change.op == "order":
        return Verdict.of("B1", f"{_count(change.b)} in another order, {_inversions(change)}")
    if change.op in {"insert", "delete", "append"} and change.path[:1] == ("tools",) and _is_element(change):
        names = ", ".join(_name(tool) for tool in change.b or change.a)
        return Verdict.of("B1", f"tools {'added' if change.b else 'gone'}: {names}", fix="align")
    if change.op == "text" and (pieces := _permuted_pieces(change.a, change.b)):
        same = ", the same length" if len(change.a) == len(change.b) else ""
        return Verdict.of("B1", f"{pieces} in another order{same}", fix="align")
    return None


def _is_element(change: Change) -> bool:
    return len(change.path) == 2 and isinstance(change.path[1], int)


def _permuted_pieces(a: str, b: str) -> str:
    for pattern, word in ((r"\n", "lines"), (r"[,;|]\s*", "items")):
        left, right = ([p.strip() for p in re.split(pattern, side) if p.strip()] for side in (a, b))
        if len(left) > 1 and left != right and sorted(left) == sorted(right):
            return f"{len(left)} {word}"
    return ""


def _count(items: Sequence[Any]) -> str:
    return f"{len(items)} elements"


def _inversions(change: Change) -> str:
    """Kendall's distance: how many pairs stand the other way round."""
    places = {canonical(item): index for index, item in enumerate(change.a)}
    seen = [places[key] for key in map(canonical, change.b) if key in places]
    swapped = sum(x > y for index, x in enumerate(seen) for y in seen[index + 1 :]) if len(seen) <= 500 else 0
    return f"Kendall distance {swapped}"


def _name(tool: Any) -> str:
    function = tool.get("function", tool) if isinstance(tool, dict) else {}
    return str(function.get("name") or tool)[:40] if isinstance(function, dict) else str(tool)[:40]


def keys(change: Change, context: Context) -> Verdict | None:
    """B2 in a tool, B3 in the history, B4 for the request's own fields: the same keys in another order."""
    if change.op != "keys":
        return None
    code = {"tools": "B2", "history": "B3", "system": "B3"}.get(context.layer(change), "B4")
    return Verdict.of(code, f"keys {', '.join(change.a[:5])} -> {', '.join(change.b[:5])}; semantically equal")


def serialised(change: Change, context: Context) -> Verdict | None:
    """B3 (B2 in a tool): equal JSON written in other bytes, or arguments that are a string here and an object there."""
    if change.op == "json":
        code = "B2" if context.layer(change) == "tools" else "B3"
        return Verdict.of(code, f"{_difference(change.a, change.b)}; semantically equal")
    if change.op == "value" and _parsed(change.a) == _parsed(change.b) != "":
        return Verdict.of("B3", f"JSON as {type(change.a).__name__} -> {type(change.b).__name__}; semantically equal")
    return None


def _parsed(value: Any) -> str:
    if isinstance(value, str):
        try:
            value = json.loads(value) if value[:1] in {"{", "["} else None
        except (ValueError, RecursionError):
            return ""
    try:
        return canonical(value) if isinstance(value, dict | list) and value else ""
    except RecursionError:
        return ""


def _difference(a: str, b: str) -> str:
    if "".join(a.split()) == "".join(b.split()):
        return "JSON separators"
    left, right = json.loads(a), json.loads(b)
    if json.dumps(left) != json.dumps(right):
        return "JSON key order"
    return "JSON escapes" if "\\" in a + b else "JSON number format"


def shape(change: Change, context: Context) -> Verdict | None:
    """B5: empty against absent, string against list of parts."""
    field = format_path(change.path[-1:])
    if change.op in {"insert", "delete"} and isinstance(change.path[-1], str):
        present = change.b if change.op == "insert" else change.a
        if present in _EMPTY:
            sides = ("absent", repr(present)) if change.op == "insert" else (repr(present), "absent")
            return Verdict.of("B5", f"{field} {sides[0]} -> {sides[1]}")
        return Verdict.of("B5", f"{field} only in {'B' if change.op == 'insert' else 'A'}")
    if change.op == "value" and type(change.a) is not type(change.b):
        is_same = text_of(change.a).strip() == text_of(change.b).strip()
        if is_same or (change.a in _EMPTY and change.b in _EMPTY):
            return Verdict.of("B5", f"{field} is {_type(change.a)} -> {_type(change.b)}, the same text")
    return None


def _type(value: Any) -> str:
    return {"str": "a string", "list": "a list", "NoneType": "null", "dict": "an object"}.get(
        type(value).__name__, repr(value)
    )
