"""F, G, H and what only a series shows: causes that leave the ids as they are, read from usage, times, markers, routes.

Each detector is given the steps of one lane in order and answers with at most one verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from foreword.billing.providers import ProviderRules, rules_for
from foreword.diagnose.causes.table import Verdict

if TYPE_CHECKING:  # sequence imports this module
    from foreword.diagnose.captures import Capture
    from foreword.diagnose.sequence import Step

_DATES = 1e9, 4e9
"""Times between these seconds are dates; smaller ones are counted from the start of a log."""
_ENOUGH = 3
"""Requests a pattern over time needs before it is one."""
_GROWTH = 1.2
_SLACK = 64
_WORTH_SHARING = 512
_CANNOT_ROLL_BACK = (
    "full prompt re-processing",
    "full reprocessing",
    "prefix caching is disabled",
    "disabling prefix caching",
    "not supported with prefix caching",
)


def explain_series(steps: Sequence[Step]) -> list[Verdict]:
    """The causes outside the prompt, likeliest first; where the report itself is wrong, nothing it says is used."""
    reported = _reported_wrongly(steps)
    if reported:
        return [reported]
    found = [verdict for detector in _DETECTORS if (verdict := detector(steps)) is not None]
    if any(verdict.cause.code == "F2" for verdict in found):
        found = [verdict for verdict in found if verdict.cause.code != "F1"]
    return found or [verdict for verdict in (_cold_start(steps),) if verdict is not None]


def _cached(step: Step) -> int | None:
    return step.capture.usage.cached_tokens if step.capture.usage else None


def _input(step: Step) -> int | None:
    usage = step.capture.usage
    return usage.input_tokens if usage and usage.input_tokens is not None else step.tokens


def _rules(step: Step) -> ProviderRules | None:
    capture, time = step.capture, step.capture.time or 0.0
    day = datetime.fromtimestamp(time, UTC).date() if _DATES[0] < time < _DATES[1] else None
    return rules_for(capture.model, capture.route.partition("/")[0], day)


def _later(steps: Sequence[Step]) -> list[Step]:
    """Steps that could have reused something: they share a prefix with an earlier request, or nothing is known."""
    return [step for step in steps if step.previous is not None]


def _reported_wrongly(steps: Sequence[Step]) -> Verdict | None:
    """H1 and H2: the reported number cannot be right, or is in a field the client did not read."""
    for step in steps:
        raw, usage = step.capture.raw_usage, step.capture.usage
        if raw.get("cachedContentTokenCount") and "cached_tokens" in raw and not raw["cached_tokens"]:
            return Verdict.of(
                "H2", f"the response has cachedContentTokenCount = {raw['cachedContentTokenCount']}, the log 0"
            )
        if usage and raw and usage.cached_tokens is None and usage.input_tokens is not None and _rules(step) is None:
            return Verdict.of("H2", "the response reports no cached tokens at all; absent is not zero")
    over = [(step, cached) for step in _later(steps) if (cached := _cached(step)) and _more_than_shared(step, cached)]
    firsts = [
        step for step in steps if step.previous is None and (_cached(step) or 0) > _SLACK and step.tokens is not None
    ]
    if over and not firsts and len(over) * 2 >= len(_later(steps)):
        step, cached = over[0]
        return Verdict.of("H1", f"{cached} tokens reported cached, {step.shared} shared by content")
    return None


def _more_than_shared(step: Step, cached: int) -> bool:
    """By shares of the prompt, since the server's tokens are not ours to the token."""
    if step.shared is None or not step.tokens:
        return False
    return cached / (_input(step) or step.tokens) > step.shared / step.tokens + 0.15


def _engine(steps: Sequence[Step]) -> Verdict | None:
    """G3: the engine says so, or what is missing is the earlier outputs to the token."""
    for step in steps:
        line = next((n for n in step.capture.notes for known in _CANNOT_ROLL_BACK if known in n.lower()), None)
        if line:
            return Verdict.of("G3", f"the engine logged {line[:80]!r}")
    for before, after in pairwise(steps):
        usage = before.capture.usage
        cached = _cached(after)
        if (
            usage
            and cached
            and usage.output_tokens
            and cached == usage.input_tokens
            and (_input(after) or 0) > cached + usage.output_tokens // 2
        ):
            return Verdict.of(
                "G3", f"cached {cached} is the earlier prompt; its {usage.output_tokens} output tokens were not reused"
            )
    return None


def _switched(steps: Sequence[Step]) -> Verdict | None:
    """F6: a turn went cold as the model or a setting changed."""
    names = ("model", "reasoning_effort", "effort", "reasoning", "thinking", "service_tier", "verbosity")
    cold = 0
    seen = ""
    for before, after in pairwise(steps):
        a, b = before.capture.document, after.capture.document
        if not (isinstance(a, dict) and isinstance(b, dict)) or _cached(after):
            continue
        changed = [name for name in names if a.get(name) != b.get(name)]
        cold += bool(changed)
        seen = seen or (f"{changed[0]} {a.get(changed[0])!r} -> {b.get(changed[0])!r}" if changed else "")
    return Verdict.of("F6", f"{seen}; {cold} cold turns") if cold else None


def _expired(steps: Sequence[Step]) -> Verdict | None:
    """F5: cold after a gap longer than the entry's life."""
    for before, after in pairwise(steps):
        rules = _rules(after)
        gap = (after.capture.time or 0) - (before.capture.time or 0)
        if (
            rules
            and rules.life
            and before.capture.time
            and gap > rules.life
            and _cached(after) == 0
            and _extends(after)
        ):
            return Verdict.of("F5", f"{gap:.0f} s since the last use, the entry lives {rules.life} s")
    return None


def _extends(step: Step) -> bool:
    return not (step.diff and step.diff.seams)


def _not_stored(steps: Sequence[Step]) -> Verdict | None:
    """G2: sent before an equal prefix was finished, or the first call of another conversation of the same kind."""
    for before, after in pairwise(steps):
        start, begun = before.capture.time, after.capture.time
        if _cached(after) != 0 or start is None or begun is None or not _extends(after):
            continue
        end = start + (before.capture.duration or 0)
        if begun < end:
            return Verdict.of("G2", f"sent {end - begun:.1f} s before the first request with this prefix was done")
        sessions = before.capture.session, after.capture.session
        if all(sessions) and sessions[0] != sessions[1] and (after.shared or 0) >= _WORTH_SHARING:
            return Verdict.of(
                "G2", f"first call of another conversation; {after.shared} tokens are the same as in the last one"
            )
    return None


def _routed(steps: Sequence[Step]) -> Verdict | None:
    """G1: the prefix is the same and hits come and go, or go with the machine that served."""
    hits = [
        (step, _cached(step))
        for step in _later(steps)
        if _cached(step) is not None and _extends(step) and _is_same_session(step)
    ]
    cold = [step for step, cached in hits if cached == 0]
    if not cold:
        return None
    moved = [
        after
        for before, after in pairwise(steps)
        if any(after is step for step in cold)
        and before.capture.route
        and after.capture.route
        and before.capture.route != after.capture.route
    ]
    if moved:
        return Verdict.of(
            "G1", f"{len(moved)} of {len(cold)} cold requests went to another machine: {moved[0].capture.route}"
        )
    warm = len(hits) - len(cold)
    if len(hits) >= _ENOUGH and warm and _one_fingerprint(steps) and not _in_band(hits):
        return Verdict.of("G1", f"one prefix, {warm} warm and {len(cold)} cold requests in turn")
    return None


def _is_same_session(step: Step) -> bool:
    return step.previous is not None and step.previous.session == step.capture.session


def _one_fingerprint(steps: Sequence[Step]) -> bool:
    prints = {step.capture.fingerprints.get("prefix_fp") for step in steps} - {None}
    return len(prints) <= 1


def _in_band(hits: Sequence[tuple[Step, int | None]]) -> bool:
    """Whether all cold requests lie in a band of sizes without a warm one."""
    cold = sorted(_input(step) or 0 for step, cached in hits if cached == 0)
    warm = [_input(step) or 0 for step, cached in hits if cached]
    sizes = bool(cold) and len(cold) >= _ENOUGH and cold[-1] > cold[0] * _GROWTH
    return sizes and not any(cold[0] <= size <= cold[-1] for size in warm)


def _provider_unit(steps: Sequence[Step]) -> Verdict | None:
    """G4: a band of sizes that never hits, or the shared prefix rounded down to the provider's unit."""
    hits = [(step, _cached(step)) for step in _later(steps) if _cached(step) is not None and _extends(step)]
    if _in_band(hits) and any(cached for _, cached in hits):
        cold = sorted(_input(step) or 0 for step, cached in hits if cached == 0)
        return Verdict.of("G4", f"no hit between {cold[0]} and {cold[-1]} tokens, hits on both or either side")
    for step, cached in hits:
        rules, size = _rules(step), step.shared if step.shared is not None else _input(step)
        if (
            rules
            and rules.step > 1
            and cached
            and size
            and cached < size
            and size - cached < 2 * rules.step
            and cached % rules.step == 0
        ):
            return Verdict.of("G4", f"{size} shared tokens counted in units of {rules.step}: {cached}")
    return None


def _too_small(steps: Sequence[Step]) -> Verdict | None:
    """F4: the prompt is under the model's minimum, so nothing is stored."""
    for step in _later(steps):
        rules, size = _rules(step), _input(step)
        if (
            rules
            and size
            and size < rules.minimum_for(step.capture.model)
            and not _cached(step)
            and not _written(step)
            and step.capture.usage
        ):
            return Verdict.of(
                "F4",
                f"{size} tokens; {step.capture.model or rules.name} caches from {rules.minimum_for(step.capture.model)}",
            )
    return None


def _written(step: Step) -> int:
    return (step.capture.usage.cache_write_tokens or 0) if step.capture.usage else 0


def _looked_back_too_little(steps: Sequence[Step]) -> Verdict | None:
    """F3: more blocks between this marker and the last one than the provider looks back."""
    for before, after in pairwise(steps):
        rules = _rules(after)
        if not (rules and rules.lookback):
            continue
        marks = [_markers(step.capture) for step in (before, after)]
        if all(marks) and _extends(after) and marks[1][-1] - marks[0][-1] > rules.lookback and len(marks[1]) <= 2:
            return Verdict.of(
                "F3", f"{marks[1][-1] - marks[0][-1]} blocks since the last marker, {rules.lookback} are looked at"
            )
    return None


def _markers(capture: Capture) -> list[int]:
    """Content blocks that carry a cache marker, by their place among all blocks."""
    return [index for index, block in enumerate(_blocks(capture.document)) if _is_marked(block)]


def _blocks(document: Any) -> Iterator[Any]:
    if not isinstance(document, dict):
        return
    tools = document.get("tools")
    yield from tools if isinstance(tools, list) else ()
    system = document.get("system")
    yield from system if isinstance(system, list) else [system] if system else ()
    turns = document.get("messages", document.get("input"))
    for turn in turns if isinstance(turns, list) else ():
        content = turn.get("content") if isinstance(turn, dict) else turn
        yield from content if isinstance(content, list) and content else [turn]


def _is_marked(block: Any) -> bool:
    return isinstance(block, dict) and any(
        key in block for key in ("cache_control", "cachePoint", "prompt_cache_breakpoint")
    )


def _marker_faults(steps: Sequence[Step]) -> Verdict | None:
    """F1 and F2 from the bodies: no marker where the provider wants one, markers that cannot be, markers that stay."""
    bodies = [
        step
        for step in steps
        if isinstance(step.capture.document, dict) and step.capture.document and step.capture.usage
    ]
    wanting = [step for step in bodies if (rules := _rules(step)) and rules.markers]
    if not wanting:
        return None
    silent = all(not _cached(step) and not _written(step) for step in wanting)
    unmarked = all(not _markers(step.capture) for step in wanting)
    large = any((_input(step) or 0) >= 1024 for step in wanting)
    if unmarked and silent and large:
        return Verdict.of("F1", "no marker in the body, nothing written, nothing read")
    if not unmarked and silent and large and len(wanting) > 1 and any(map(_has_lost_marker, wanting)):
        return Verdict.of("F2", "markers sit on messages that cannot carry them: declared, never emitted")
    return _frozen(wanting)


def _has_lost_marker(step: Step) -> bool:
    turns = step.capture.document.get("messages", [])
    return any(isinstance(t, dict) and _is_marked(t) for t in turns) or len(_markers(step.capture)) > 4


def _frozen(steps: Sequence[Step]) -> Verdict | None:
    if len(steps) < _ENOUGH:
        return None
    last = [max(marks, default=-1) for marks in map(_markers, (step.capture for step in steps))]
    sizes = [_input(step) or 0 for step in steps]
    tail = next((n for n in range(len(last)) if len(set(last[n:])) == 1), len(last))
    in_history = last[-1] >= 0 and last[-1] > _head_blocks(steps[-1].capture)
    if in_history and len(last) - tail >= _ENOUGH and sizes[-1] > sizes[tail] * _GROWTH:
        return Verdict.of(
            "F2",
            f"the last marker stays at block {last[-1]} while the prompt grows from {sizes[tail]} to {sizes[-1]} tokens",
        )
    return None


def _head_blocks(capture: Capture) -> int:
    body = capture.document
    system = body.get("system")
    return len(body.get("tools") or ()) + (len(system) if isinstance(system, list) else bool(system)) - 1


def _pinned(steps: Sequence[Step]) -> Verdict | None:
    """F1 (or F2 where it once grew) from usage: cached tokens stay flat while the prompt grows."""
    seen = [(c, i) for step in steps if (c := _cached(step)) is not None and (i := _input(step)) and _extends(step)]
    seen = seen[1:] if seen and not seen[0][0] else seen
    if len(seen) < _ENOUGH or not seen[-1][0]:
        return None
    start = next(n for n in range(len(seen)) if len({c for c, _ in seen[n:]}) == 1)
    if len(seen) - start < _ENOUGH or seen[-1][1] < seen[start][1] * _GROWTH:
        return None
    code = "F2" if start >= _ENOUGH else "F1"
    return Verdict.of(
        code, f"cached stays at {seen[-1][0]} while the prompt grows from {seen[start][1]} to {seen[-1][1]} tokens"
    )


def _dead_writes(steps: Sequence[Step]) -> Verdict | None:
    """F7: every request writes, none reads."""
    writes = [step for step in steps if _written(step)]
    if len(writes) >= _ENOUGH and len(writes) == len(steps) and not any(map(_cached, steps)):
        return Verdict.of("F7", f"{len(writes)} writes of {sum(map(_written, writes))} tokens, no read")
    return None


def _moving_segment(steps: Sequence[Step]) -> Verdict | None:
    """Where a log has fingerprints only: which segment moves. Tools that move alone are a list order."""
    prints = [step.capture.fingerprints for step in steps if step.capture.fingerprints]
    if len(prints) < _ENOUGH:
        return None
    counts = {name: len({p.get(name) for p in prints}) for name in prints[0]}
    tools = next((name for name in counts if name.startswith("tool")), "")
    others = [count for name, count in counts.items() if name != tools and not name.startswith("history")]
    if tools and counts[tools] > 2 and max(others, default=0) * 2 <= counts[tools]:
        shown = ", ".join(f"{name} {count}" for name, count in counts.items())
        return Verdict.of("B1", f"distinct values in {len(prints)} rows: {shown}")
    return None


def _cold_start(steps: Sequence[Step]) -> Verdict | None:
    """D2: short sessions cannot do better than their cold first turn allows."""
    sessions: dict[str, list[Step]] = {}
    for step in steps:
        sessions.setdefault(step.capture.session, []).append(step)
    if not all(sessions) or not any(_cached(step) for step in steps):
        return None
    totals = [sum(_input(step) or 0 for step in turns) for turns in sessions.values()]
    colds = [_input(turns[0]) or 0 for turns in sessions.values()]
    if not sum(totals) or sum(colds) / sum(totals) < 0.1:
        return None
    ceiling = 1 - sum(colds) / sum(totals)
    return Verdict.of(
        "D2", f"{len(sessions)} sessions, {len(steps)} turns: {ceiling:.0%} of tokens is the most that can hit"
    )


_DETECTORS = (
    _engine, _moving_segment, _switched, _expired, _not_stored, _too_small, _looked_back_too_little, _marker_faults, _routed,
    _provider_unit, _pinned, _dead_writes,
)  # fmt: skip
