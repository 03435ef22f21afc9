"""Many requests of a log: each compared with the best of the last few of its lane, and what the whole series shows.

A lane is what may share a cache: the log's own label, or the model and the opening of the system text. A request that
extends an earlier one is never encoded for its own sake; only seams cost time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from foreword.diagnose.captures import Capture
from foreword.diagnose.causes import outside
from foreword.diagnose.causes.table import Verdict
from foreword.diagnose.diff import Diff, diff_prompts
from foreword.diagnose.layout import Layout, neutral_layout
from foreword.diagnose.notes import OutsideCause, note_of
from foreword.diagnose.screen import Parts, Screen, closeness, parts_of, same_parts
from foreword.diagnose.splice import PieceEncoder
from foreword.tokens.tokenizer import Tokenizer

WORTH_TOKENS = 16
"""A gain under one block is not worth a line in a log's report."""
COMPARED = 8
"""Earlier requests of a lane each request is compared with."""


@dataclass(frozen=True, slots=True)
class Step:
    """One request of a series, the earlier one it shares most with, and what is known of the two.

    Attributes:
        shared: tokens it could have reused; None where the log has no body.
        tokens: its own length in tokens; None where the log has no body.
        diff: the verdict, where the request needed one.
        notes: what is told of one that did not.
    """

    capture: Capture
    previous: Capture | None = None
    shared: int | None = None
    tokens: int | None = None
    diff: Diff | None = None
    notes: Sequence[OutsideCause] = ()


@dataclass(slots=True)
class Finding:
    """One cause in one lane: how often, what it lost, and where it was first seen."""

    code: str
    name: str
    lane: str
    source: str
    evidence: str
    owner: str
    edit: str
    is_expected: bool = False
    count: int = 0
    lost_tokens: int = 0
    path: str = ""


@dataclass(slots=True)
class _Lane:
    name: str
    recent: deque[tuple[Capture, Parts]] = field(default_factory=lambda: deque(maxlen=COMPARED))
    steps: list[Step] = field(default_factory=list)


def explain_requests(
    captures: Iterable[Capture], tokenizer: Tokenizer, *, layout: Layout = neutral_layout, all_of_one_lane: bool = False
) -> list[Finding]:
    """Every cause in a log, what costs most first; expected ones last."""
    lanes: dict[str, _Lane] = {}
    log = _Log(tokenizer, layout, PieceEncoder(tokenizer), Screen())
    for capture in captures:
        name = "" if all_of_one_lane else lane_of(capture)
        lane = lanes.setdefault(name, _Lane(name))
        lane.steps.append(_step(lane, capture, log))
    found = [finding for lane in lanes.values() for finding in _explain_lane(lane)]
    return sorted(found, key=lambda f: (f.is_expected, -f.lost_tokens, -f.count, f.code))


def lane_of(capture: Capture) -> str:
    """The log's label, else the model and the opening of the system text."""
    if capture.lane or not isinstance(capture.document, dict):
        return capture.lane
    tools = capture.document.get("tools")
    return f"{capture.model}|{len(tools) if isinstance(tools, list) else 0} tools"


@dataclass(frozen=True, slots=True)
class _Log:
    """How a log is read, and what was learned of it so far."""

    tokenizer: Tokenizer
    layout: Layout
    encoder: PieceEncoder
    screen: Screen


def _step(lane: _Lane, capture: Capture, log: _Log) -> Step:
    if not capture.document:
        previous = lane.steps[-1].capture if lane.steps else None
        return Step(capture, previous)
    parts = parts_of(capture.document, lane.recent[-1][1] if lane.recent else None)
    best = _best(lane, capture, parts)
    lane.recent.append((capture, parts))
    if best is None:
        return Step(capture)
    earlier, known = best
    same = _same_session(earlier, capture)
    seen = log.screen.look(earlier.document, capture.document, same_session=same)
    if seen is None or not log.screen.is_harmless(seen[0]):
        step = _extends(earlier, capture, log) if seen is not None else None
        step = step or _judge(earlier, capture, log)
        if seen is not None and _is_harmless(step):
            log.screen.believe(seen[0])
        return step
    shared = sum(parts.sizes[: same_parts(known.values, parts.values)])
    return Step(capture, earlier, _about(shared), _about(parts.size), notes=seen[1])


def _extends(earlier: Capture, capture: Capture, log: _Log) -> Step | None:
    """The step of a request whose text goes on from the earlier one's; None for any other."""
    texts = [log.layout(document) for document in (earlier.document, capture.document)]
    if not texts[1].startswith(texts[0]):
        return None
    return Step(capture, earlier, _about(len(texts[0])), _about(len(texts[1])))


def _judge(earlier: Capture, capture: Capture, log: _Log) -> Step:
    diff = diff_prompts(
        earlier.document,
        capture.document,
        log.tokenizer,
        layout=log.layout,
        same_session=_same_session(earlier, capture),
        encoder=log.encoder,
    )
    return Step(capture, earlier, diff.shared_tokens, diff.b_tokens, diff)


def _same_session(earlier: Capture, capture: Capture) -> bool | None:
    return earlier.session == capture.session if earlier.session and capture.session else None


def _is_harmless(step: Step) -> bool:
    return step.diff is None or not (step.diff.seams or any(not n.is_expected for n in step.diff.outside_causes))


def _best(lane: _Lane, capture: Capture, parts: Parts) -> tuple[Capture, Parts] | None:
    """Of the lane's last requests the one with the longest common prefix, the same session's and the newest first."""
    own = [earlier for earlier in lane.recent if capture.session and earlier[0].session == capture.session]
    return max(reversed(own or lane.recent), key=lambda earlier: closeness(earlier[1], parts), default=None)


def _about(characters: int) -> int:
    """Tokens of a text nobody needs to the token: a quarter of its characters."""
    return characters // 4


def _explain_lane(lane: _Lane) -> list[Finding]:
    findings: dict[str, Finding] = {}
    for step in lane.steps:
        before = 0
        for seam in step.diff.seams if step.diff else ():
            gain, before = seam.recovered_together - before, seam.recovered_together
            if gain >= WORTH_TOKENS:
                _count(findings, lane.name, step, Verdict.of(seam.code, seam.evidence), lost=gain, path=seam.path)
        for note in step.diff.outside_causes if step.diff else step.notes:
            _count(findings, lane.name, step, Verdict.of(note.code, note.evidence))
    for verdict in outside.explain_series(lane.steps):
        _count(findings, lane.name, lane.steps[-1], verdict)
    return list(findings.values())


def _count(
    findings: dict[str, Finding], lane: str, step: Step, verdict: Verdict, *, lost: int = 0, path: str = ""
) -> None:
    cause = verdict.cause
    if cause.code not in findings:
        said = step.capture.provider_reason
        findings[cause.code] = Finding(
            cause.code,
            cause.name,
            lane,
            step.capture.source,
            verdict.evidence + (f"; the provider says {said}" if said else ""),
            cause.owner,
            cause.edit,
            cause.scope == "expected",
            path=path,
        )
    findings[cause.code].count += 1
    findings[cause.code].lost_tokens += lost


def explain_pair(a: Capture, b: Capture, diff: Diff) -> Diff:
    """The diff of two captures with the causes outside the prompt that their times, usage and routes show."""
    shared = diff.shared_tokens
    steps = [Step(a, None, None, diff.a_tokens), Step(b, a, shared, diff.b_tokens, diff)]
    known = {note.code for note in diff.outside_causes}
    found = (
        [verdict for verdict in outside.explain_series(steps) if verdict.cause.code not in known]
        if not diff.seams
        else []
    )
    return replace(diff, outside_causes=(*map(note_of, found), *diff.outside_causes), provider_reason=b.provider_reason)
