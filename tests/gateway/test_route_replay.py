"""Traces replayed through policies."""

from pathlib import Path

import pytest

from foreword.errors import ConfigError
from foreword.gateway.policies import make_policy
from foreword.gateway.route_replay import WorkerModel, replay_routes
from foreword.trace.readers import read_mooncake
from foreword.trace.records import TraceRequest

TRACE = Path(__file__).parents[2] / "benchmarks" / "data" / "mooncake_conversation.jsonl"


@pytest.fixture(scope="module")
def mooncake() -> list[TraceRequest]:
    """The Mooncake conversation trace."""
    return list(read_mooncake(TRACE))


def test_cache_aware_keeps_conversations_together(mooncake: list[TraceRequest]) -> None:
    """8 workers x 6,000 blocks: at least 35.5 % of tokens hit, and no worker prefills over 1.1 times the mean."""
    result = replay_routes(mooncake, make_policy("cache_aware"), 8, WorkerModel(6000))
    assert result.hit_ratio >= 0.355
    assert result.load_spread <= 1.1


def test_round_robin_scatters_them(mooncake: list[TraceRequest]) -> None:
    """Round robin hits 11.6 % of the same trace: the figure every other policy is measured against."""
    result = replay_routes(mooncake, make_policy("round_robin"), 8, WorkerModel(6000))
    assert result.hit_ratio == pytest.approx(0.11626, abs=5e-6)


def test_one_endless_worker_hits_what_an_endless_cache_hits(mooncake: list[TraceRequest]) -> None:
    """Full blocks, never the last token: .373380 of all tokens is what routing can reach at most."""
    result = replay_routes(mooncake, make_policy("random"), 1, WorkerModel(200_000))
    assert result.hit_ratio == pytest.approx(0.373380, abs=5e-7)
    assert result.workers[0].prefill_tokens + result.hit_tokens == result.input_tokens == 144_793_823


def test_time_to_first_token_is_wait_plus_prefill() -> None:
    """Two prompts at once on one worker: the second waits for the first and skips the blocks they share."""
    trace = [TraceRequest(0.0, 1000, 10, (1, 2)), TraceRequest(0.0, 1000, 10, (1, 3))]
    result = replay_routes(trace, make_policy("cache_aware"), 1, WorkerModel(10, block_size=500, prefill_rate=100.0))
    assert result.ttft == (10.0, 15.0)
    assert result.hit_tokens == 500


def test_an_empty_trace_has_no_rates() -> None:
    """Nothing in, zeros out."""
    result = replay_routes([], make_policy("cache_aware"), 3, WorkerModel(10))
    assert (result.hit_ratio, result.load_spread, result.ttft_percentile(99)) == (0.0, 1.0, 0.0)


def test_no_workers_is_an_error() -> None:
    """A fleet of none is refused."""
    with pytest.raises(ConfigError, match="0 workers"):
        replay_routes([], make_policy("random"), 0, WorkerModel(10))
