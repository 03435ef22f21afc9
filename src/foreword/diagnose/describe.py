"""A verdict in words, for people: header, place, chips, caret, cause, edit, gains."""

from __future__ import annotations

from collections.abc import Iterator

from foreword.diagnose.diff import Diff, Seam
from foreword.diagnose.notes import OutsideCause
from foreword.diagnose.seam import Chip

_MAX_TEXT = 60
_MAX_REASON = 300


def describe_diff(diff: Diff, *, footer: str = "") -> str:
    """The whole verdict; the first finding starts on the third line."""
    parts = [headline(diff), *("\n".join(_seam(n, seam)) for n, seam in enumerate(diff.seams, 1))]
    parts += [_outside(cause) for cause in diff.outside_causes]
    if diff.seams:
        parts.append(
            f"{diff.unreachable_tokens:,} tokens are identical in both and out of reach behind the seam{'s' * (len(diff.seams) > 1)}."
        )
    if diff.provider_reason:
        parts.append(f"The provider says: {diff.provider_reason[:_MAX_REASON]}")
    parts.append(f"Confidence: {diff.confidence}." + (f" {footer}" if footer else ""))
    return "\n\n".join(parts)


def headline(diff: Diff) -> str:
    """One line: where the two part, and how much that keeps."""
    if diff.relation == "identical":
        note = (
            ""
            if diff.is_same_text
            else "; the texts differ, but the tokenizer makes the same ids of them: nothing is lost"
        )
        return f"Identical: {diff.a_tokens:,} tokens{note}."
    share = f"{diff.shared_tokens:,} of {max(diff.a_tokens, diff.b_tokens):,} tokens ({diff.shared_fraction:.1%}), {diff.shared_blocks:,} blocks of {diff.block_size}"
    if diff.relation == "appended":
        return f"Appended: one extends the other. Shared: {share}."
    if diff.relation == "expected":
        return f"Nothing to fix. Shared: {share}."
    note = " The text is the same on both sides." if diff.is_same_text else ""
    return f"Seam at token {diff.shared_tokens:,}. Shared: {share}.{note}"


def _seam(number: int, seam: Seam) -> Iterator[str]:
    place = f"{seam.path or 'text'} char {seam.char}"
    yield f"{number}. {seam.code} {seam.name}"
    yield f"   --> {place} ({seam.layer}), token {seam.index:,}"
    start = seam.index - max(0, seam.index - 3)
    row_a, row_b = _chips(seam.a_chips), _chips(seam.b_chips)
    yield f"    A | {row_a}"
    yield f"    B | {row_b}"
    if seam.b_chips[start:]:
        yield f"      | {' ' * len(_chips(seam.b_chips[:start]) + ('  ' if start else ''))}{'^' * len(_chip(seam.b_chips[start]))}"
    if seam.a_text or seam.b_text:
        yield f"    was {_short(seam.a_text)}, is {_short(seam.b_text)}"
    yield f"    seen:  {seam.evidence}"
    yield f"    owner: {seam.owner}"
    yield f"    edit:  {seam.edit}"
    cost = f" (${seam.cost:.6f})" if seam.cost is not None else ""
    yield f"    lost {seam.lost_tokens:,} tokens{cost}; fixed alone +{seam.recovered_alone:,}, with all above +{seam.recovered_together:,}"


def _chips(chips: tuple[Chip, ...]) -> str:
    return "  ".join(map(_chip, chips))


def _chip(chip: Chip) -> str:
    return f"{chip.text} {chip.id}"


def _short(text: str) -> str:
    if not text:
        return "nothing"
    return repr(text) if len(text) <= _MAX_TEXT else repr(text[: _MAX_TEXT - 3]) + "..."


def _outside(cause: OutsideCause) -> str:
    mark = "expected: " if cause.is_expected else "outside the prompt: "
    return f"{mark}{cause.code} {cause.name}\n    seen:  {cause.evidence}\n    edit:  {cause.edit}"
