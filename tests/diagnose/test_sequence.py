"""A log read in one sweep says exactly what comparing its requests one by one says."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.logs import make_log

from foreword.diagnose.captures import Capture, capture_of, read_captures
from foreword.diagnose.causes.outside import explain_series
from foreword.diagnose.diff import diff_prompts
from foreword.diagnose.layout import Layout, neutral_layout, template_layout
from foreword.diagnose.likeness import text_of
from foreword.diagnose.sequence import COMPARED, WORTH_TOKENS, Step, explain_requests, lane_of
from foreword.testing.words import WordTokenizer
from foreword.tokens.chat_template import ChatTemplate

Found = dict[tuple[str, str], tuple[Any, ...]]
"""By lane and code: how often, tokens lost, where first, path and evidence."""

TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% if message.reasoning_content and loop.last %}{{ message.reasoning_content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LAYOUTS = {"neutral": neutral_layout, "template": template_layout(ChatTemplate(TEMPLATE).render)}


def _parts(document: Any) -> list[Any]:
    if isinstance(document, str):
        return [document]
    turns = document.get("messages") or document.get("input") or document.get("prompt") or []
    system = document.get("system", document.get("instructions"))
    return [document.get("tools"), system, *(turns if isinstance(turns, list) else [turns])]


def _shared(a: Any, b: Any) -> int:
    pairs = zip(a, b, strict=False)
    return next((n for n, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def _closeness(a: Capture, b: Capture) -> tuple[int, int]:
    left, right = _parts(a.document), _parts(b.document)
    same = _shared(left, right)
    return same, _shared(*(text_of(part[same]) for part in (left, right))) if same < min(len(left), len(right)) else 0


def one_by_one(captures: list[Capture], layout: Layout) -> Found:
    """The naive twin: every request with the best of the last few of its lane, each pair judged in full on its own."""
    lanes: defaultdict[str, list[Capture]] = defaultdict(list)
    steps: defaultdict[str, list[Step]] = defaultdict(list)
    found: Found = {}

    def count(lane: str, code: str, lost: int, *where: str) -> None:
        times, sum_lost, *first = found.get((lane, code), (0, 0, *where))
        found[lane, code] = (times + 1, sum_lost + lost, *first)

    for capture in captures:
        lane = lanes[name := lane_of(capture)]
        recent = lane[: -COMPARED - 1 : -1]
        lane.append(capture)
        recent = [c for c in recent if capture.session and c.session == capture.session] or recent
        if not recent:
            steps[name].append(Step(capture))
            continue
        earlier = max(recent, key=lambda other: _closeness(other, capture))
        labelled = earlier.session and capture.session
        same_session = earlier.session == capture.session if labelled else None
        diff = diff_prompts(
            earlier.document, capture.document, WordTokenizer(), layout=layout, same_session=same_session
        )
        steps[name].append(Step(capture, earlier, diff.shared_tokens, diff.b_tokens, diff))
        before = 0
        for seam in diff.seams:
            gain, before = seam.recovered_together - before, seam.recovered_together
            if gain >= WORTH_TOKENS:
                count(name, seam.code, gain, capture.source, seam.path, seam.evidence)
        for note in diff.outside_causes:
            count(name, note.code, 0, capture.source, "", note.evidence)
    for name, lane_steps in steps.items():
        for verdict in explain_series(lane_steps):
            count(name, verdict.cause.code, 0, lane_steps[-1].capture.source, "", verdict.evidence)
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(25))
def test_a_log_reads_the_same_in_one_sweep(seed: int, layout: str, tmp_path: Path) -> None:
    """Mixed APIs, faults of many kinds, alike conversations, with labels and without: codes, counts, tokens, places."""
    lines = make_log(seed)
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(map(json.dumps, lines)))
    expected = one_by_one([capture_of(line, f"{log}#{n}") for n, line in enumerate(lines)], LAYOUTS[layout])
    actual = {
        (f.lane, f.code): (f.count, f.lost_tokens, f.source, f.path, f.evidence)
        for f in explain_requests(read_captures(str(log)), WordTokenizer(), layout=LAYOUTS[layout])
    }
    assert actual == expected
