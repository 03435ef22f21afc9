"""What is said beside the seams: causes outside the token ids, and what is expected and nobody's fault."""

from __future__ import annotations

from dataclasses import dataclass

from foreword.diagnose.causes import Context, Verdict, detect
from foreword.diagnose.changes import Change
from foreword.diagnose.layout import format_path

_SETTINGS = (
    "model",
    "reasoning",
    "reasoning_effort",
    "effort",
    "thinking",
    "service_tier",
    "text",
    "verbosity",
    "tool_choice",
)


@dataclass(frozen=True, slots=True)
class OutsideCause:
    """A cause that leaves the token ids as they are, or that is told but never warned about."""

    code: str
    name: str
    evidence: str
    edit: str
    is_expected: bool = False


def note_of(verdict: Verdict) -> OutsideCause:
    """The note that a verdict makes."""
    cause = verdict.cause
    return OutsideCause(cause.code, cause.name, verdict.evidence, cause.edit, cause.scope == "expected")


def expected_note(reason: str) -> OutsideCause:
    """The note on what is nobody's fault."""
    return note_of(Verdict.of("D2", reason))


def add_note(notes: list[OutsideCause], note: OutsideCause) -> None:
    """Say it, unless it was said."""
    if note not in notes:
        notes.append(note)


def unmoved_notes(change: Change, context: Context) -> list[OutsideCause]:
    """What is worth saying of a change that moves no token here but may elsewhere."""
    if change.op == "append" or change.path[-1:] == ("cache_control",):
        return []
    if context.layer(change) == "parameters" and change.path[0] in {
        "metadata",
        "user",
        "stream",
        "max_tokens",
        "temperature",
    }:
        return []
    if context.layer(change) == "parameters" and change.op != "keys":
        return _switched(change)
    verdict = detect(change, context)
    if verdict.cause.code not in {"B2", "B3", "B4", "B5"}:
        return []
    evidence = f"{verdict.evidence}; no token moves here, effect unknown on other surfaces"
    return [OutsideCause(verdict.cause.code, verdict.cause.name, evidence, verdict.cause.edit)]


def _switched(change: Change) -> list[OutsideCause]:
    if not change.path or change.path[0] not in _SETTINGS:
        return []
    return [note_of(Verdict.of("F6", f"{format_path(change.path)} {change.a!r} -> {change.b!r}"))]
