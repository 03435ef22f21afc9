"""Every reproduction is found, with the right code first, at the right token, and with gains that a replay confirms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cases.build import Case
from tests.cases.catalogue import all_cases, run_log, run_pair

from foreword.diagnose.causes import all_causes
from foreword.testing.words import WordTokenizer

CASES = all_cases()
EXPECTED = json.loads(Path(__file__).with_name("expected.json").read_text())
PAIRS = [case for case in CASES if not case.log]


def _shared(a: list[int], b: list[int]) -> int:
    """The naive twin of the seam: one loop."""
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.number}-{case.code}")
def test_the_right_cause_comes_first(case: Case, tmp_path: Path) -> None:
    """The code of the collection is the first verdict, and further causes of the case are among the rest."""
    if case.log:
        codes = [finding.code for finding in run_log(case, WordTokenizer(), tmp_path)]
    else:
        diff = run_pair(case, WordTokenizer())
        codes = [seam.code for seam in diff.seams] or [cause.code for cause in diff.outside_causes]
    assert codes[:1] == [case.code]
    assert set(case.more) <= set(codes)


@pytest.mark.parametrize("case", PAIRS, ids=lambda case: f"{case.number}-{case.code}")
def test_seam_token_and_recovered_tokens(case: Case) -> None:
    """The seam's index and the tokens recovered by all fixes are those written down."""
    diff = run_pair(case, WordTokenizer())
    found = {"seam": diff.shared_tokens, "recovered": diff.unreachable_tokens}
    assert found == EXPECTED[case.number]


@pytest.mark.parametrize("case", [case for case in PAIRS if case.a is not None], ids=lambda case: case.number)
def test_the_seam_is_where_the_ids_part(case: Case) -> None:
    """The seam equals what a plain loop over the two id lists finds."""
    diff = run_pair(case, tokenizer := WordTokenizer())
    if case.extra.get("other_tokenizer"):
        assert diff.shared_tokens < 16
        return
    a, b = (list(tokenizer.encode(layout(body))) for layout, body in zip(case.layouts, (case.a, case.b), strict=True))
    assert diff.shared_tokens == _shared(a, b)


@pytest.mark.parametrize("case", [case for case in PAIRS if case.fixed], ids=lambda case: case.number)
def test_the_promised_gain_is_what_the_edit_brings(case: Case) -> None:
    """The requests as fixed by hand share exactly the tokens that the verdict promised."""
    assert case.fixed is not None
    diff = run_pair(case, tokenizer := WordTokenizer())
    a, b = (list(tokenizer.encode(layout(body))) for layout, body in zip(case.layouts, case.fixed, strict=True))
    assert diff.shared_tokens + diff.unreachable_tokens == _shared(a, b)


def test_every_code_has_a_case() -> None:
    """No cause is without a reproduction."""
    assert {case.code for case in CASES} == set(all_causes()) - {"Z0"}
