"""D: history that was already sent is not what is sent now."""

from __future__ import annotations

from foreword.diagnose.causes.table import Context, Verdict
from foreword.diagnose.changes import Change
from foreword.diagnose.hints import PLACEHOLDER, SUMMARY, THINK
from foreword.diagnose.layout import messages_of
from foreword.diagnose.likeness import text_of

_REASONING = {"reasoning_content", "reasoning", "thinking", "reasoning_details", "encrypted_content"}
_FEW_WORDS = 12
_SHORTER = 0.5


def reasoning(change: Change, context: Context) -> Verdict | None:
    """D3: reasoning that one side has and the other lacks (B5 where both are empty in effect)."""
    a, b = text_of(change.a), text_of(change.b)
    if change.path and str(change.path[-1]) in _REASONING and bool(a.strip()) != bool(b.strip()):
        return Verdict.of("D3", f"{len((a or b).split())} words of reasoning only in {'A' if a.strip() else 'B'}")
    if change.op in {"insert", "delete"} and isinstance(change.path[-1], int):
        kinds = {str(item.get("type")) for item in change.a or change.b if isinstance(item, dict)}
        if kinds & {"thinking", "redacted_thinking", "reasoning"}:
            return Verdict.of("D3", "a block of reasoning only in " + ("A" if change.op == "delete" else "B"))
    if change.op == "text" and THINK.search(a + b) and context.role(change) in {"assistant", ""}:
        return Verdict.of("D3", "text of a think block differs")
    return None


def window(change: Change, context: Context) -> Verdict | None:
    """D1 for a history cut at its start, D2 where a summary took the place of what was cut."""
    if change.op not in {"delete", "insert"} or context.layer(change) != "history" or len(change.path) != 2:
        return None
    gone = _runs(context, "delete")
    came = _runs(context, "insert")
    if came and SUMMARY.search("\n".join(text_of(run.b) for run in came)) and sum(len(run.a) for run in gone) > 1:
        return Verdict.of("D2", "a summary took the place of the history")
    if change.op == "delete" and _is_at_start(change, context) and len(change.a_whole) > change.a_at + len(change.a):
        return Verdict.of("D1", f"the history's first {len(change.a)} messages are gone")
    return None


def _runs(context: Context, op: str) -> list[Change]:
    return [c for c in context.changes if c.op == op and c.path[:1] in {("messages",), ("input",)} and len(c.path) == 2]


def _is_at_start(change: Change, context: Context) -> bool:
    """Whether only system messages stand ahead of the run, and later messages are still there."""
    before = change.a_whole[: change.a_at]
    kept = len(messages_of(context.b)) if isinstance(context.b, dict) else 0
    return kept > len(before) and all(
        isinstance(m, dict) and str(m.get("role")) in {"system", "developer"} for m in before
    )


def pruned(change: Change, context: Context) -> Verdict | None:
    """D4: a message that was already sent is shorter now, or is a placeholder."""
    if context.layer(change) != "history" or change.op not in {"text", "value"}:
        return None
    a, b = text_of(change.a), text_of(change.b)
    is_short = len(b) < len(a) * _SHORTER and len(a.split()) > _FEW_WORDS
    if PLACEHOLDER.search(b) or is_short:
        return Verdict.of("D4", f"{len(a)} characters -> {len(b)}")
    return None


def removed(change: Change, context: Context) -> Verdict | None:
    """D4: messages or blocks taken out of the middle of the history."""
    if change.op == "delete" and isinstance(change.path[-1], int) and context.layer(change) in {"history", "system"}:
        return Verdict.of("D4", f"{len(change.a)} taken out")
    return None
