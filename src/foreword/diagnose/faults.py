"""Which changes between two requests are faults: they move tokens, and are neither expected nor in the newest turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foreword.diagnose.causes import Context, Verdict, detect
from foreword.diagnose.changes import Change
from foreword.diagnose.expected import Expected
from foreword.diagnose.notes import OutsideCause, add_note, expected_note, note_of, unmoved_notes
from foreword.diagnose.pair import LAYOUT, TOKENIZER, Pair
from foreword.diagnose.seam import shared_tokens

MAX_SEAMS = 40
"""Changes beyond this many are not looked at one by one: the first ones are what costs."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A change that moves tokens, where, and its cause."""

    position: int
    change: Change
    verdict: Verdict


def find_faults(pair: Pair, shared: int, *, same_session: bool | None) -> tuple[list[Fault], list[OutsideCause]]:
    """The changes that move tokens, by where they do, with their causes; and what is only worth a note."""
    context = Context(pair.a, pair.b, pair.changes, same_session)
    expectation = Expected(pair, same_session=same_session)
    found: list[Fault] = []
    notes: list[OutsideCause] = []
    end = len(pair.ids("a"))
    limit = min(end, shared_limit(pair))
    last_turn = last_turn_start(pair)
    if shared == end == len(pair.ids("b")) or _is_text_append(pair):
        return [], [note for change in pair.changes for note in unmoved_notes(change, context)]
    for change in _by_place((*pair.environment(), *pair.changes))[:MAX_SEAMS]:
        if change.op == "append" and not _hoists(pair, change):
            continue
        expected = expectation.reason(change)
        position = pair.position(change) if not expected else end
        if not expected and last_turn <= position < end and is_newest(change, context):
            continue
        if expected:
            add_note(notes, expected_note(expected))
        elif position >= limit:
            notes += unmoved_notes(change, context)
        else:
            _add(found, notes, Fault(position, change, _verdict(change, context)))
    return sorted(found, key=lambda item: item.position), notes


def shared_limit(pair: Pair) -> int:
    """A's length without its generation prompt: a change from there on takes nothing away."""
    if isinstance(pair.a, str):
        return len(pair.ids("a"))
    body = {**pair.a, "add_generation_prompt": False}
    text = pair.a_reading.layout(body)
    return shared_tokens(pair.ids("a"), pair.a_reading.encoder.encode(text))


def last_turn_start(pair: Pair) -> int:
    """The token at which A's newest turn starts: what changes from there on is the newest question, not a fault."""
    key = next(
        (key for key in ("messages", "input") if isinstance(pair.a, dict) and isinstance(pair.a.get(key), list)), ""
    )
    if not key or not pair.a[key]:
        return len(pair.ids("a"))
    body = {**pair.a, key: pair.a[key][:-1], "add_generation_prompt": False}
    return shared_tokens(pair.ids("a"), pair.a_reading.encoder.encode(pair.a_reading.layout(body)))


_NEWEST = frozenset({"A1", "A2", "A3", "A4", "C1", "D1", "D4", "Z0"})
"""Causes that are no fault in the newest turn."""


def is_newest(change: Change, context: Context) -> bool:
    """Whether a change is of a kind that is no fault in the newest turn."""
    if context.layer(change) != "history":
        return False
    verdict = detect(change, context)
    return verdict.cause.code in _NEWEST or (verdict.cause.code in {"C2", "C3"} and verdict.is_small)


def _is_text_append(pair: Pair) -> bool:
    return isinstance(pair.a, str) and all(change.op == "append" for change in pair.changes) and not pair.environment()


def _by_place(changes: Sequence[Change]) -> list[Change]:
    """Template and tokenizer first, then parameters, tools, system, history: as requests are rendered."""
    order = {"chat_template": 0, "tokenizer": 1, "tools": 3, "system": 4, "instructions": 4, "messages": 5, "input": 5}
    return sorted(changes, key=lambda change: order.get(str(change.path[0]) if change.path else "", 2))


def _hoists(pair: Pair, change: Change) -> bool:
    """Whether an appended system message is rendered ahead of what was there."""
    roles = {str(item.get("role")) for item in change.b or () if isinstance(item, dict)}
    return not pair.a_reading.is_neutral and bool(roles & {"system", "developer"})


def _add(found: list[Fault], notes: list[OutsideCause], item: Fault) -> None:
    if item.verdict.cause.scope == "expected":
        add_note(notes, note_of(item.verdict))
    elif item.verdict.cause.scope == "outside":
        notes.append(note_of(item.verdict))
    else:
        found.append(item)


def _verdict(change: Change, context: Context) -> Verdict:
    if change is LAYOUT:
        return Verdict.of("E7", "the same messages render to other text")
    if change is TOKENIZER:
        return Verdict.of("E6", "the same text encodes to other ids")
    return detect(change, context)
