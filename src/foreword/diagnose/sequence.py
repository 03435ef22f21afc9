"""Many requests of a log: each compared with the best of the last few of its lane, and what the whole series shows.

A lane is what may share a cache: the log's own label, or the model and the opening of the system text. A request that
extends an earlier one is never encoded for its own sake; only seams cost time.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from foreword.diagnose.captures import Capture
from foreword.diagnose.causes import outside
from foreword.diagnose.causes.table import Verdict
from foreword.diagnose.diff import Diff, diff_prompts
from foreword.diagnose.layout import Layout, neutral_layout
from foreword.diagnose.notes import OutsideCause, note_of
from foreword.diagnose.screen import Parts, Passed, Screen, Values, closest, parts_of, values_of
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


@dataclass(frozen=True, slots=True)
class Match:
    """One request beside the earlier one of its lane it shares most with, before anything is rendered or encoded.

    Attributes:
        earlier: that one, or None for the first of a lane and where the log has no body.
        shared: characters of the parts both begin with.
        size: characters of the request; None where the log has no body.
        same_session: whether both are of one session, where the log says.
        passed: what the screen says of the pair; None where a verdict is due.
    """

    lane: str
    capture: Capture
    earlier: Capture | None = None
    shared: int = 0
    size: int | None = None
    same_session: bool | None = None
    passed: Passed | None = None


@dataclass(slots=True)
class _Lane:
    recent: deque[tuple[Capture, Parts]] = field(default_factory=lambda: deque(maxlen=COMPARED))
    last: Capture | None = None

    def closest(self, session: str, values: Values) -> tuple[Capture, Parts, int] | None:
        """Of the last requests, of the same session where there is one, the one that shares most; the newest of equals."""
        own = [earlier for earlier in self.recent if session and earlier[0].session == session]
        others = [*reversed(own or self.recent)]
        if not others:
            return None
        index, same = closest([parts for _, parts in others], values)
        return (*others[index], same)


def explain_requests(
    captures: Iterable[Capture], tokenizer: Tokenizer, *, layout: Layout = neutral_layout
) -> list[Finding]:
    """Every cause in a log, what costs most first; expected ones last."""
    screen = Screen()
    return explain_matches(match_requests(captures, screen), screen, tokenizer, layout=layout)


def match_requests(captures: Iterable[Capture], screen: Screen) -> list[Match]:
    """Each request of a log beside the best of the last few of its lane; needs no tokenizer."""
    lanes: defaultdict[str, _Lane] = defaultdict(_Lane)
    return [_match(lanes[name := lane_of(capture)], name, capture, screen) for capture in captures]


def _match(lane: _Lane, name: str, capture: Capture, screen: Screen) -> Match:
    before, lane.last = lane.last, capture
    if not capture.document:
        return Match(name, capture, before)
    values = values_of(capture.document)
    best = lane.closest(capture.session, values)
    earlier, known, same = best or (None, None, 0)
    parts = parts_of(values, known, same)
    lane.recent.append((capture, parts))
    if earlier is None:
        return Match(name, capture, size=parts.size)
    same_session = earlier.session == capture.session if earlier.session and capture.session else None
    passed = screen.look(earlier.document, capture.document, same_session=same_session)
    return Match(name, capture, earlier, sum(parts.sizes[:same]), parts.size, same_session, passed)


def explain_matches(
    matches: Iterable[Match], screen: Screen, tokenizer: Tokenizer, *, layout: Layout = neutral_layout
) -> list[Finding]:
    """The causes behind the pairs of a log, as ``explain_requests`` has them."""
    lanes: defaultdict[str, list[Step]] = defaultdict(list)
    log = _Log(tokenizer, layout, PieceEncoder(tokenizer), screen)
    for match in matches:
        lanes[match.lane].append(_step(match, log))
    found = [finding for name, steps in lanes.items() for finding in _explain_lane(name, steps)]
    return sorted(found, key=lambda f: (f.is_expected, -f.lost_tokens, -f.count, f.code))


def lane_of(capture: Capture) -> str:
    """The log's label, else the model and the number of tools."""
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


def _step(match: Match, log: _Log) -> Step:
    if match.size is None:
        return Step(match.capture, match.earlier)
    if match.earlier is None:
        return Step(match.capture)
    passed = match.passed
    if passed is None:
        return _judge(match, match.earlier, log)
    if log.screen.is_harmless(passed.kind):
        return Step(match.capture, match.earlier, _about(match.shared), _about(match.size), notes=passed.notes)
    step = _extends(match, match.earlier, log) or _judge(match, match.earlier, log)
    if _is_harmless(step):
        log.screen.believe(passed.kind)
    return step


def _extends(match: Match, earlier: Capture, log: _Log) -> Step | None:
    """The step of a request whose text goes on from the earlier one's; None for any other."""
    texts = [log.layout(document) for document in (earlier.document, match.capture.document)]
    if not texts[1].startswith(texts[0]):
        return None
    return Step(match.capture, earlier, _about(len(texts[0])), _about(len(texts[1])))


def _judge(match: Match, earlier: Capture, log: _Log) -> Step:
    diff = diff_prompts(
        earlier.document,
        match.capture.document,
        log.tokenizer,
        layout=log.layout,
        same_session=match.same_session,
        encoder=log.encoder,
    )
    return Step(match.capture, earlier, diff.shared_tokens, diff.b_tokens, diff)


def _is_harmless(step: Step) -> bool:
    return step.diff is None or not (step.diff.seams or any(not n.is_expected for n in step.diff.outside_causes))


def _about(characters: int) -> int:
    """Tokens of a text nobody needs to the token: a quarter of its characters."""
    return characters // 4


def _explain_lane(lane: str, steps: Sequence[Step]) -> list[Finding]:
    findings: dict[str, Finding] = {}
    for step in steps:
        before = 0
        for seam in step.diff.seams if step.diff else ():
            gain, before = seam.recovered_together - before, seam.recovered_together
            if gain >= WORTH_TOKENS:
                _count(findings, lane, step, Verdict.of(seam.code, seam.evidence), lost=gain, path=seam.path)
        for note in step.diff.outside_causes if step.diff else step.notes:
            _count(findings, lane, step, Verdict.of(note.code, note.evidence))
    for verdict in outside.explain_series(steps):
        _count(findings, lane, steps[-1], verdict)
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
