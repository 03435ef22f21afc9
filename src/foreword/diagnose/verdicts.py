"""The running verdict: each request against the best of the last few of its lane, from ids that are already there.

Nothing is encoded. The seam is a comparison of buffers; the cause comes from the first change between the two bodies,
whose equal messages are skipped. A verdict never raises: what cannot be judged has no verdict.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from foreword.diagnose.causes import Context, Verdict, detect
from foreword.diagnose.causes.e_template import special_tokens
from foreword.diagnose.changes import Change, changes_in, compare
from foreword.diagnose.layout import format_path
from foreword.diagnose.likeness import text_of
from foreword.diagnose.seam import shared_tokens
from foreword.tokens.tokenizer import TokenIds

Body = Mapping[str, Any]
_WORTH = 64
"""Characters of a text, about a block, that must stand behind a change in it before it is more than another question."""
_PROVEN = 8
"""Tokens a rendered prompt may lose at its end to the generation prompt."""


@dataclass(frozen=True, slots=True)
class SeamRow:
    """One request's verdict.

    Attributes:
        number: counts up; a reader asks for what came after the last one it has.
        relation: "first", "identical", "appended", "expected" or "seam".
        seam: the token at which matching stops; None where it does not.
        lost_tokens: tokens behind the seam that the earlier request could have offered.
        segments: tokens of tools and system text, of history, and of the newest turn.
        a_text: the earlier text at the seam, b_text the new one; empty unless text may be shown.
    """

    number: int
    request_id: str
    model: str
    lane: str
    time: float
    relation: str
    prompt_tokens: int
    shared_tokens: int
    seam: int | None = None
    lost_tokens: int = 0
    code: str = ""
    name: str = ""
    path: str = ""
    edit: str = ""
    segments: tuple[int, int, int] = (0, 0, 0)
    a_text: str = ""
    b_text: str = ""


@dataclass(frozen=True, slots=True)
class _Seen:
    body: Body
    ids: TokenIds

    @property
    def size(self) -> int:
        """Bytes it holds, roughly: ids, and as many again for the body."""
        return 2 * len(self.ids.buffer)


@dataclass(slots=True)
class _Lane:
    seen: deque[_Seen] = field(default_factory=deque)
    size: int = 0


@dataclass(frozen=True, slots=True)
class SeamWatchStatistics:
    """What a watch holds."""

    lanes: int
    requests: int
    bytes: int
    rows: int


class SeamWatch:
    """Keeps the last requests of each lane and the last verdicts, within bounds on lanes, bytes and rows."""

    def __init__(
        self,
        *,
        compared: int = 8,
        max_bytes: int = 64 << 20,
        max_lanes: int = 256,
        max_rows: int = 1024,
        show_text: bool = False,
    ) -> None:
        self._compared = compared
        self._max_bytes = max_bytes
        self._max_lanes = max_lanes
        self._show_text = show_text
        self._lanes: OrderedDict[tuple[str, ...], _Lane] = OrderedDict()
        self._rows: deque[SeamRow] = deque(maxlen=max_rows)
        self._bytes = 0
        self._number = 0
        self.counts: dict[tuple[str, str], int] = {}
        """Verdicts by model and code; "" for requests without a seam."""

    def observe(
        self,
        body: Body,
        ids: TokenIds,
        *,
        model: str,
        lane: str = "",
        owner: str = "",
        request_id: str = "",
        now: float | None = None,
    ) -> SeamRow:
        """Judge a request and remember it. Lanes of different owners never meet, nor do conversations and bare prompts."""
        key = owner, model, lane, "prompt" if "prompt" in body else "conversation"
        kept = self._lanes.setdefault(key, _Lane())
        self._lanes.move_to_end(key)
        best = _best(kept.seen, ids)
        self._number += 1
        row = SeamRow(self._number, request_id, model, lane, time.time() if now is None else now, "first", len(ids), 0)
        if best is not None:
            row = self._judge(row, best, _Seen(body, ids))
        self._rows.append(row)
        self.counts[model, row.code] = self.counts.get((model, row.code), 0) + 1
        self._remember(kept, _Seen(body, ids))
        return row

    def _judge(self, row: SeamRow, earlier: _Seen, now: _Seen) -> SeamRow:
        shared = shared_tokens(earlier.ids, now.ids)
        row = replace(row, shared_tokens=shared, relation="appended")
        if shared == len(earlier.ids) or shared == len(now.ids):
            return replace(row, relation="identical") if len(earlier.ids) == len(now.ids) else row
        try:
            found = first_cause(earlier.body, now.body)
        except Exception:  # noqa: BLE001 - a verdict must not cost the request it is about
            return replace(row, relation="expected")
        if found is None and shared <= 1 and (shifted := special_tokens(earlier.ids, now.ids)):
            found = Change("value", (), "", ""), shifted
        if found is None:
            return row if shared >= len(earlier.ids) - _PROVEN else replace(row, relation="expected")
        change, verdict = found
        lost = min(len(earlier.ids), len(now.ids)) - shared
        texts = (text_of(change.a)[:200], text_of(change.b)[:200]) if self._show_text else ("", "")
        return replace(
            row, relation="seam", seam=shared, lost_tokens=lost, code=verdict.cause.code, name=verdict.cause.name,
            path=format_path(change.path), edit=verdict.cause.edit, a_text=texts[0], b_text=texts[1],
        )  # fmt: skip

    def _remember(self, lane: _Lane, seen: _Seen) -> None:
        lane.seen.append(seen)
        lane.size += seen.size
        self._bytes += seen.size
        while len(lane.seen) > self._compared:
            self._forget(lane)
        while self._lanes and (self._bytes > self._max_bytes or len(self._lanes) > self._max_lanes):
            key, oldest = next(iter(self._lanes.items()))
            while oldest.seen:
                self._forget(oldest)
            del self._lanes[key]

    def _forget(self, lane: _Lane) -> None:
        size = lane.seen.popleft().size
        lane.size -= size
        self._bytes -= size

    def rows(self, after: int = 0, limit: int = 100) -> list[SeamRow]:
        """Up to ``limit`` verdicts, oldest first: the ones that follow number ``after``, or for 0 the newest there are."""
        if after:
            return [row for row in self._rows if row.number > after][:limit]
        return list(self._rows)[max(0, len(self._rows) - limit) :]

    @property
    def newest(self) -> int:
        """The number of the last verdict, 0 before the first."""
        return self._number

    def statistics(self) -> SeamWatchStatistics:
        """How much is held."""
        return SeamWatchStatistics(
            len(self._lanes), sum(len(lane.seen) for lane in self._lanes.values()), self._bytes, len(self._rows)
        )

    def check_integrity(self) -> None:
        """Raise where the books are wrong or a bound is broken."""
        held = sum(seen.size for lane in self._lanes.values() for seen in lane.seen)
        if held != self._bytes or self._bytes > self._max_bytes or len(self._lanes) > self._max_lanes:
            raise RuntimeError(
                f"The seam watch holds {held} bytes in {len(self._lanes)} lanes and counts {self._bytes}."
            )


def _best(seen: Sequence[_Seen], ids: TokenIds) -> _Seen | None:
    """The request that shares most, the newest of equals; one that does not beat the best so far costs one comparison."""
    best, shared = (seen[-1], shared_tokens(seen[-1].ids, ids)) if seen else (None, 0)
    for other in list(seen)[-2::-1]:
        more = 4 * (shared + 1)
        if len(other.ids) > shared and other.ids.buffer[:more] == ids.buffer[:more]:
            best, shared = other, shared_tokens(other.ids, ids)
    return best


def first_cause(a: Body, b: Body) -> tuple[Change, Verdict] | None:
    """The first change between two bodies that moves ids ahead of the newest turn, and its cause."""
    changes = tuple(changes_in(compare(dict(a), dict(b))))
    context = Context(a, b, changes)
    for change in sorted(changes, key=_rendered_place):
        if change.op == "append":
            continue
        verdict = detect(change, context)
        is_moved = verdict.cause.code in {"C2", "C3"} and not verdict.is_small
        if verdict.cause.scope == "seam" and (is_moved or not _is_newest(change, a, b)):
            return change, verdict
    return None


def _rendered_place(change: Change) -> tuple[int, int]:
    head = str(change.path[0]) if change.path else ""
    rank = {"tools": 1, "system": 2, "messages": 3}.get(head, 0)
    index = change.path[1] if len(change.path) > 1 and isinstance(change.path[1], int) else -1
    return rank, index


def _is_newest(change: Change, a: Body, b: Body) -> bool:
    """In the newest turn of either, or where two conversations share no turn at all; of a text, what little stands behind."""
    if change.path == ("prompt",) and isinstance(change.a_whole, str):
        return len(change.a_whole) - change.a_at - len(change.a) < _WORTH
    if change.path[:1] != ("messages",) or len(change.path) < 2:
        return False
    turns: Sequence[Any] = a.get("messages") or ()
    later: Sequence[Any] = b.get("messages") or ()
    place = change.path[1] if isinstance(change.path[1], int) else 0
    role = later[place].get("role") if place < len(later) and isinstance(later[place], Mapping) else ""
    if role in {"system", "developer"}:
        return False
    if change.op in {"insert", "delete"} and len(change.path) == 2 and change.a_at >= len(turns) - 1:
        return True
    if place >= min(len(turns), len(later)) - 1:
        return True
    spoken = [
        [t for t in side if isinstance(t, Mapping) and t.get("role") not in {"system", "developer"}]
        for side in (turns, later)
    ]
    return (
        bool(spoken[0])
        and bool(spoken[1])
        and text_of(spoken[0][0]) != text_of(spoken[1][0])
        and change.op == "delete"
        and change.b_at == 0
    )
