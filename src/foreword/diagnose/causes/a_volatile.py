"""A: a value that varies stands ahead of text that does not."""

from __future__ import annotations

from foreword.diagnose.causes.table import Context, Verdict
from foreword.diagnose.changes import Change
from foreword.diagnose.hints import IDENTITY, NONCE, ON_OFF, STATE, heading_above, line_around
from foreword.diagnose.volatile import Kind, granularity, kind_of, kind_of_change

_ITEMS = 3


def in_tools(change: Change, context: Context) -> Verdict | None:
    """A5: a volatile value inside the tools."""
    if change.op != "text" or context.layer(change) != "tools":
        return None
    kind = kind_of_change(change.a, change.b)
    if kind is None:
        return None
    length = ", the same length on both sides" if len(change.a_whole) == len(change.b_whole) else ""
    return Verdict.of("A5", f"{kind} {change.a!r} -> {change.b!r}{length}")


def value(change: Change, context: Context) -> Verdict | None:
    """A1, A2, A4 or A3: one changed value, by its kind and the words around it."""
    if change.op != "text":
        return None
    kind = kind_of_change(change.a, change.b)
    if kind is None:
        return None
    line = line_around(change.b_whole, change.b_at, change.b_at + len(change.b))
    return _by_kind(kind, change, line.replace(change.b, " "), same_session=context.same_session)


def _by_kind(kind: Kind, change: Change, line: str, *, same_session: bool | None) -> Verdict | None:
    shown = f"{kind} {change.a!r} -> {change.b!r}"
    if kind in {"clock", "date"}:
        return Verdict.of("A1", f"{shown}, to the {granularity(change.b or change.a)}")
    if kind in {"path", "identity", "url"}:
        return Verdict.of("A4", shown)
    if kind in {"uuid", "nonce"}:
        is_identity = same_session is not True and IDENTITY.search(line) and not NONCE.search(line)
        return Verdict.of("A4" if is_identity else "A2", f"{shown}, {_width(change)}")
    if kind in {"counter", "number"}:
        return Verdict.of("A2" if NONCE.search(line) and not STATE.search(line) else "A3", shown)
    return None


def _width(change: Change) -> str:
    return f"{len(change.b or change.a)} characters"


def state(change: Change, context: Context) -> Verdict | None:
    """A3: a list or snapshot of live state that changed; A4 for a changed name beside words of identity."""
    if change.op not in {"text", "value"} or context.layer(change) == "tools":
        return None
    if not isinstance(change.a, str) or not isinstance(change.b, str):
        return None
    line = line_around(change.b_whole or "", change.b_at, change.b_at + len(change.b))
    line += heading_above(change.b_whole or "", change.b_at)
    flips = {change.a.strip().lower(), change.b.strip().lower()} <= ON_OFF
    is_list = max(change.a.count("\n"), change.b.count("\n")) >= _ITEMS
    if not change.a.strip() and "\n" not in change.b.strip():
        return None
    if flips or STATE.search(line) or STATE.search(change.a + change.b) or (is_list and change.a and change.b):
        return Verdict.of("A3", f"{_brief(change.a)} -> {_brief(change.b)}")
    words = max(len(change.a.split()), len(change.b.split()))
    if words <= _ITEMS and change.a and change.b and IDENTITY.search(line) and _is_value(change):
        return Verdict.of("A4", f"{change.a!r} -> {change.b!r}")
    return None


def _is_value(change: Change) -> bool:
    """Whether a short change is what a field holds: ``user: ann``, ``name=ann``, or a kind of value on one side."""
    before = change.b_whole[max(0, change.b_at - 2) : change.b_at].strip()
    return before.endswith((":", "=", "/", "@")) or bool(kind_of(change.a) or kind_of(change.b))


def _brief(text: str) -> str:
    return repr(text if len(text) <= 48 else text[:45] + "...")
