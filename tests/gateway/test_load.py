"""The gateway's account of what each worker has in flight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.gateway.load import WorkerLoad
from foreword.gateway.policies import RECENT_HALF_LIFE


def test_recent_tokens_halve_every_half_life() -> None:
    """What was sent counts half as much a half-life later."""
    load = WorkerLoad()
    load.begin(1000, now=10.0)
    assert load.recent_tokens(10.0) == 1000
    assert load.recent_tokens(10.0 + RECENT_HALF_LIFE) == pytest.approx(500)
    load.begin(100, now=10.0 + 2 * RECENT_HALF_LIFE)
    assert load.recent_tokens(10.0 + 2 * RECENT_HALF_LIFE) == pytest.approx(350)


@given(st.lists(st.tuples(st.integers(0, 5000), st.booleans()), max_size=30))
def test_everything_begun_and_ended_leaves_nothing(requests: list[tuple[int, bool]]) -> None:
    """Whether or not a first output came, an ended request leaves no load."""
    load = WorkerLoad()
    for tokens, _ in requests:
        load.begin(tokens, now=0.0)
        load.check_integrity()
    for tokens, prefilled in requests:
        if prefilled:
            load.prefilled(tokens)
        load.check_integrity()
        load.end(0 if prefilled else tokens)
        load.check_integrity()
    assert (load.requests, load.backlog_tokens) == (0, 0)
