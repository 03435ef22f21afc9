"""E: what lies between the text one wrote and the ids the model reads."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Literal

from foreword.diagnose.causes.table import Context, Verdict
from foreword.diagnose.changes import Change
from foreword.diagnose.volatile import INVISIBLE, is_look_alike

_FORMS: tuple[Literal["NFC", "NFD"], ...] = ("NFC", "NFD")
_SHIFT_PROOF = 8
"""Ids that must agree after a shift by one before it counts as a missing or doubled first token."""


def parameter(change: Change, context: Context) -> Verdict | None:
    """E4: a request parameter; that it moves tokens was seen before this is asked."""
    if context.layer(change) != "parameters" or change.op in {"keys", "order"}:
        return None
    return Verdict.of("E4", f"{change.path[0]} {change.a!r} -> {change.b!r}")


def look_alike(change: Change, context: Context) -> Verdict | None:
    """E5: the texts look the same."""
    if not (isinstance(change.a, str) and isinstance(change.b, str)) or not is_look_alike(change.a, change.b):
        return None
    return Verdict.of("E5", describe_invisible(change.a, change.b), fix="align")


def describe_invisible(a: str, b: str) -> str:
    """Which invisible characters differ, by name: ``B has NBSP``; or the Unicode forms."""
    if unicodedata.normalize("NFC", a) == unicodedata.normalize("NFC", b):
        return f"Unicode form {_form(a)} -> {_form(b)}"
    gone, came = _extra(a, b), _extra(b, a)
    parts = [f"A has {', '.join(gone)}"] * bool(gone) + [f"B has {', '.join(came)}"] * bool(came)
    return "; ".join(parts) or "spaces differ"


def _extra(a: str, b: str) -> list[str]:
    names = [(name, a.count(ch) - b.count(ch)) for ch, name in {**INVISIBLE, " ": "space"}.items()]
    return [name if count == 1 else f"{count} {name}" for name, count in names if count > 0]


def _form(text: str) -> str:
    for form in _FORMS:
        if unicodedata.is_normalized(form, text):
            return form
    return "mixed"


def special_tokens(a: Sequence[int], b: Sequence[int]) -> Verdict | None:
    """E3: the ids agree once the first token of one side is left out."""
    for name, with_first, without in (("A", list(a[:65]), list(b[:64])), ("B", list(b[:65]), list(a[:64]))):
        shared = min(len(with_first) - 1, len(without), 64)
        proof = min(_SHIFT_PROOF, len(without))
        if proof and shared >= proof and with_first[1 : shared + 1] == without[:shared]:
            doubled = with_first[0] == with_first[1]
            what = f"first token {with_first[0]} twice" if doubled else f"first token {with_first[0]} only"
            return Verdict.of("E3", f"{what} in {name}; equal after a shift by one")
    return None
