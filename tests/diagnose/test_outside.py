"""Causes outside the prompt, told from one lane's steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foreword.billing.usage import Usage
from foreword.diagnose.captures import Capture
from foreword.diagnose.causes.outside import explain_series
from foreword.diagnose.sequence import Step

USAGE = Usage(input_tokens=2000, cached_tokens=0, output_tokens=5)


def step(route: str, cached: int, earlier: Capture | None) -> Step:
    """One request of 2,000 tokens that shares all but the last hundred with the one before."""
    capture = Capture({"model": "m"}, "log#0", route=route, session="s", usage=replace(USAGE, cached_tokens=cached))
    return Step(capture, earlier, shared=1900 if earlier else 0, tokens=2000)


def codes(steps: list[Step]) -> list[str]:
    """The codes that a series gets."""
    return [verdict.cause.code for verdict in explain_series(steps)]


def test_a_route_is_compared_with_the_step_ahead_even_among_equal_steps() -> None:
    """The second of two equal cold steps comes from elsewhere; the first has the machine it had before."""
    first = step("east", 0, None)
    known = first.capture
    again = step("east", 0, known)
    assert again == step("east", 0, known)
    moved = [first, step("east", 1900, known), again, step("west", 1900, known), step("east", 0, known)]
    assert "1 of 2 cold requests went to another machine: east" in str(
        [verdict.evidence for verdict in explain_series(moved)]
    )


def test_the_first_step_of_a_series_has_no_route_before_it() -> None:
    """A cold first step whose earlier request lies outside the series is not compared with the last one."""
    outside = step("east", 0, None).capture
    assert "G1" not in codes([step("east", 0, outside), step("west", 1900, outside)])


@pytest.mark.parametrize(
    "time, counted_in_units", [(1_760_000_000.0, True), (1_770_000_000.0, False), (20.0, False), (float("inf"), False)]
)
def test_an_old_log_is_judged_by_the_rules_of_its_day(time: float, *, counted_in_units: bool) -> None:
    """DeepSeek counted in units of 64 tokens until 2026; a time that is no date has today's rules."""
    first = replace(step("deepseek", 0, None).capture, time=time, model="deepseek-chat")
    later = replace(step("deepseek", 1856, None).capture, time=time, model="deepseek-chat")
    assert ("G4" in codes([Step(first, None, 0, 2000), Step(later, first, 1900, 2000)])) is counted_in_units
