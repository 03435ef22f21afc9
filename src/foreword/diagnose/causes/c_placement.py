"""C: something was put in, moved or taken out ahead of stable text."""

from __future__ import annotations

from typing import Any

from foreword.diagnose.causes.table import Context, Fix, Verdict
from foreword.diagnose.changes import Change
from foreword.diagnose.hints import REMINDER, RETRIEVED, STATE, heading_above, line_around
from foreword.diagnose.likeness import canonical, similarity, text_of

_BLOCK = 120
"""Characters from which a text that turns up elsewhere counts as a block that moved."""
_PASSAGE_WORDS = 25
_STILL_SAME = 0.6
_IMAGES = {"image", "image_url", "input_image", "inline_data", "document_image"}


def image(change: Change, context: Context) -> Verdict | None:
    """C4: an image part came, went or moved."""
    run = change.b if change.b is not None else change.a
    parts = run if isinstance(run, list) else [run]
    if change.op in {"insert", "delete", "value", "order"} and any(map(_is_image, parts)):
        return Verdict.of("C4", f"image part {'moved' if change.op == 'order' else change.op}")
    if _is_image(change.b_whole) or "image_url" in change.path:
        return Verdict.of("C4", "the image itself is sent in other bytes")
    return None


def _is_image(part: Any) -> bool:
    return isinstance(part, dict) and str(part.get("type")) in _IMAGES


def reminder(change: Change, context: Context) -> Verdict | None:
    """C2: a reminder block that is replaced as the conversation goes on."""
    if change.op not in {"insert", "delete"} or not isinstance(change.path[-1], int) or change.path[0] == "tools":
        return None
    run = change.a if change.op == "delete" else change.b
    text = text_of(run)
    if not REMINDER.search(text) or len(text) > 2000:
        return None
    marked = (
        " and carries the cache marker, so its entry can never be read" if "cache_control" in canonical(run) else ""
    )
    return Verdict.of(
        "C2", f"a reminder {'left' if change.op == 'delete' else 'came into'} the history{marked}", is_small=not marked
    )


def moved_block(change: Change, context: Context) -> Verdict | None:
    """C3: a long text that stands elsewhere in the other request."""
    if change.op not in {"text", "delete", "insert"}:
        return None
    gone, came = text_of(change.a).strip(), text_of(change.b).strip()
    block, other = (gone, context.b) if gone else (came, context.a)
    if len(block) < _BLOCK or (gone and came):
        return None
    moved = block in _whole_text(other) or _stands_elsewhere(change, context, block)
    if not moved:
        return None
    return Verdict.of("C3", f"a block of {len(block)} characters stands elsewhere now", fix="align")


def _stands_elsewhere(change: Change, context: Context, block: str) -> bool:
    """A nearly equal message, put in on one side and taken out on the other."""
    wanted = "insert" if change.op == "delete" else "delete"
    others = (c for c in context.changes if c.op in {wanted, "append"} and c.path[:1] == change.path[:1])
    runs = (run for c in others for run in (c.b if c.b is not None else c.a) or [] if isinstance(run, dict | str))
    return any(similarity(text_of(item), block) >= _STILL_SAME for item in runs)


def behind_history(change: Change, context: Context) -> Verdict | None:
    """C3: system text that stands behind the history and moves on with its end."""
    if change.op != "insert" or not isinstance(change.a_whole, list) or context.layer(change) != "history":
        return None
    before, here = change.a_whole[: change.a_at], change.a_whole[change.a_at : change.a_at + 1]
    is_system = any(isinstance(turn, dict) and str(turn.get("role")) in {"system", "developer"} for turn in here)
    spoken = any(isinstance(turn, dict) and str(turn.get("role")) in {"user", "assistant"} for turn in before)
    return (
        Verdict.of("C3", "the system text stands behind the history and moves with its end")
        if is_system and spoken
        else None
    )


def _whole_text(document: Any) -> str:
    return document if isinstance(document, str) else text_of(document)


def retrieved(change: Change, context: Context) -> Verdict | None:
    """C3: retrieved or remembered text that differs by query, in a text or as a message of its own."""
    layer = context.layer(change)
    if layer == "tools" or change.op not in {"text", "insert", "delete"}:
        return None
    text = text_of(change.a) + "\n" + text_of(change.b)
    words = max(len(text_of(change.a).split()), len(text_of(change.b).split()))
    if change.op == "text":
        near = line_around(change.b_whole, change.b_at, change.b_at) + heading_above(change.b_whole, change.b_at)
        is_state = STATE.search(text) or STATE.search(near)
        is_passage = words >= _PASSAGE_WORDS and change.a and change.b and not is_state
        is_named = words > 3 and RETRIEVED.search(near) and not is_state
        found = is_passage or is_named
    else:
        found = bool(RETRIEVED.search(text))
    fix: Fix = "move" if change.op == "text" else "align"
    return Verdict.of("C3", f"{words} words of retrieved text differ", fix=fix, is_small=True) if found else None


def injected(change: Change, context: Context) -> Verdict | None:
    """C1: a message or a preamble that was not there before."""
    layer = context.layer(change)
    if change.op in {"insert", "append"} and isinstance(change.path[-1], int) and layer == "history":
        roles = {str(item.get("role", "user")) for item in change.b or change.a if isinstance(item, dict)}
        return Verdict.of("C1", f"message of role {', '.join(sorted(roles))} put in")
    is_added = change.op == "text" and not change.a.strip() and len(change.b.split()) > 1
    is_gone = change.op == "text" and not change.b.strip() and len(change.a.split()) > 1
    if layer in {"system", "prompt"} and (is_added or is_gone):
        whole, at = (change.b_whole, change.b_at) if is_added else (change.a_whole, change.a_at)
        place = "ahead of the text" if not whole[:at].strip() else f"at character {at}"
        return Verdict.of("C1", f"{len((change.b or change.a).split())} words put in {place}")
    if change.op == "insert" and change.path[0] in {"system", "instructions"}:
        return Verdict.of("C1", "system text put in")
    return None
