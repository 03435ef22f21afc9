"""Routing policies choose as they say, from what they are told alone."""

import random
from pathlib import Path
from typing import Any

import pytest

from foreword.errors import ConfigError
from foreword.gateway.policies import (
    POLICIES,
    CacheAware,
    Candidate,
    LeastLoad,
    PowerOfTwo,
    PrefixHash,
    RoutingRequest,
    choose_home,
    choose_worker,
    make_policy,
    rank_by_hash,
)

REQUEST = RoutingRequest(num_tokens=4096, prefix_key=b"opening")


class Astray:
    """Chooses what is not there."""

    def __init__(self, chosen: Any = -1) -> None:
        self.chosen = chosen

    def choose(self, *_: Any) -> Any:
        """Return no index."""
        return self.chosen


class Faulty:
    """Fails."""

    def choose(self, *_: Any) -> int:
        """Raise what a mistake of one's own raises."""
        raise KeyError("no such worker")


def workers(*candidates: dict[str, Any]) -> list[Candidate]:
    """Candidates w0, w1, ... with the given fields."""
    return [Candidate(f"w{i}", **fields) for i, fields in enumerate(candidates)]


def test_cache_aware_takes_the_longest_overlap() -> None:
    """Among idle workers the one that holds most of the prompt is chosen."""
    assert CacheAware().choose(REQUEST, workers({"cached_tokens": 512}, {"cached_tokens": 2048}, {})) == 1


def test_cache_aware_waits_for_a_hit_worth_the_wait() -> None:
    """A backlog of less than the overlap over the queue weight does not send a request away from its blocks."""
    policy = CacheAware(queue=0.05)
    assert policy.choose(REQUEST, workers({"cached_tokens": 1024, "backlog_tokens": 20_000}, {})) == 0
    assert policy.choose(REQUEST, workers({"cached_tokens": 1024, "backlog_tokens": 21_000}, {})) == 1


def test_cache_aware_spills_over_the_backlog_bound() -> None:
    """Backlog over spill_tokens counts in full: no overlap is worth an endless queue."""
    held = {"cached_tokens": 100_000, "backlog_tokens": 131_072 + 100_000}
    assert CacheAware().choose(RoutingRequest(110_000), workers(held, {})) == 1


def test_cache_aware_spills_over_the_request_bound() -> None:
    """A worker with far more requests in flight than the mean is passed over, whatever it holds."""
    assert CacheAware().choose(REQUEST, workers({"cached_tokens": 4080, "requests": 200}, {"requests": 10})) == 1


def test_cache_aware_spreads_new_prefixes() -> None:
    """With nothing cached, the worker that was sent least lately is chosen."""
    assert (
        CacheAware().choose(REQUEST, workers({"recent_tokens": 900}, {"recent_tokens": 100}, {"recent_tokens": 500}))
        == 1
    )


def test_cache_aware_breaks_ties_by_queue() -> None:
    """Equal work: the worker that reports fewer waiting requests is chosen."""
    assert CacheAware().choose(REQUEST, workers({"waiting": 3}, {"waiting": 1}, {"waiting": 2})) == 1


def test_cache_aware_sends_a_new_sticky_key_home() -> None:
    """Where nothing is cached, requests with one prompt_cache_key meet on one worker; blocks held elsewhere outrank it."""
    request = RoutingRequest(4096, sticky_key="tenant-7")
    idle = workers({}, {}, {}, {})
    home = CacheAware().choose(request, idle)
    assert home == choose_home(b"tenant-7", idle)
    other = (home + 1) % 4
    held = workers(*({"cached_tokens": 512} if i == other else {} for i in range(4)))
    assert CacheAware().choose(request, held) == other


def test_round_robin_takes_turns() -> None:
    """Each worker in turn, whatever its load."""
    policy = make_policy("round_robin")
    picks = [policy.choose(REQUEST, workers({"requests": 9}, {}, {})) for _ in range(7)]
    assert picks == [0, 1, 2, 0, 1, 2, 0]


def test_random_reaches_every_worker() -> None:
    """Every worker gets about its share."""
    policy = make_policy("random", random.Random(1))
    picks = [policy.choose(REQUEST, workers({}, {}, {}, {})) for _ in range(4000)]
    assert [900 < picks.count(i) < 1100 for i in range(4)] == [True] * 4


def test_least_load_prefers_fewer_requests_then_a_shorter_queue() -> None:
    """Requests in flight first, then waiting, then backlog."""
    assert LeastLoad().choose(REQUEST, workers({"requests": 2}, {"requests": 1, "waiting": 5}, {"requests": 1})) == 2


def test_power_of_two_never_takes_the_busiest() -> None:
    """The busiest of three always loses against whichever it is paired with."""
    policy = PowerOfTwo(random.Random(2))
    picks = {policy.choose(REQUEST, workers({"requests": 9}, {"requests": 1}, {"requests": 2})) for _ in range(200)}
    assert picks == {1, 2}
    assert policy.choose(REQUEST, workers({})) == 0


def test_prefix_hash_keeps_an_opening_on_one_worker() -> None:
    """Equal openings go to one worker; different ones spread over all."""
    policy, idle = PrefixHash(), workers({}, {}, {}, {})
    homes = [policy.choose(RoutingRequest(100, b"opening %d" % i), idle) for i in range(400)]
    assert homes == [policy.choose(RoutingRequest(900, b"opening %d" % i), idle) for i in range(400)]
    assert [60 < homes.count(i) < 140 for i in range(4)] == [True] * 4


def test_prefix_hash_moves_on_from_an_overloaded_home() -> None:
    """Over 1.25 times its share of requests, the next worker in the key's order takes over."""
    idle = workers({}, {}, {})
    order = rank_by_hash(b"opening", idle)
    busy = workers(*({"requests": 8 if i == order[0] else 1} for i in range(3)))
    assert PrefixHash().choose(REQUEST, busy) == order[1]


def test_a_worker_that_leaves_moves_only_its_own_keys() -> None:
    """Rendezvous hashing: keys of the remaining workers stay where they are."""
    five = workers({}, {}, {}, {}, {})
    for i in range(200):
        key = b"key %d" % i
        before = five[choose_home(key, five)].name
        after = five[:4][choose_home(key, five[:4])].name
        assert before in (after, "w4")


@pytest.mark.parametrize("name", ["least_load", "power_of_two", "random", "round_robin", "prefix_hash"])
def test_prompt_cache_key_is_sticky_under_every_policy(name: str) -> None:
    """Requests with one key meet on one worker under policies that do not look at the cache."""
    policy = make_policy(name, random.Random(3))
    picks = {policy.choose(RoutingRequest(100, b"%d" % i, "key"), workers({}, {}, {}, {})) for i in range(50)}
    assert len(picks) == 1


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_single_worker_is_always_chosen(name: str) -> None:
    """One candidate, one answer, however loaded it is."""
    busy = workers({"requests": 500, "waiting": 100, "backlog_tokens": 10**7})
    assert make_policy(name).choose(REQUEST, busy) == 0


def test_a_policy_of_ones_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """module:Class names any importable policy."""
    (tmp_path / "own_policy.py").write_text(
        "class Last:\n    def choose(self, request, candidates):\n        return len(candidates) - 1\n\nclass Not:\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert make_policy("own_policy:Last").choose(REQUEST, workers({}, {}, {})) == 2
    with pytest.raises(ConfigError, match="has no method choose"):
        make_policy("own_policy:Not")
    (tmp_path / "wrong_policy.py").write_text("def choose(:")
    with pytest.raises(ConfigError, match="SyntaxError"):
        make_policy("wrong_policy:Last")


@pytest.mark.parametrize("chosen", [-1, 3, None, 1.0, "0"])
def test_a_choice_of_nobody_is_said(chosen: Any) -> None:
    """A policy of one's own that errs is named, and no other worker gets the request by chance."""
    with pytest.raises(ConfigError, match=f"Astray chose {chosen!r} of 3 workers"):
        choose_worker(Astray(chosen), REQUEST, workers({}, {}, {}))
    with pytest.raises(ConfigError, match="Faulty failed: KeyError"):
        choose_worker(Faulty(), REQUEST, workers({}, {}, {}))


@pytest.mark.parametrize("name", ["cache-aware", "", "no_such_module:Policy", "random:NoSuchClass", ":", "a:b:c"])
def test_an_unknown_policy_is_a_config_error(name: str) -> None:
    """The error names what was asked for and, for plain names, what there is."""
    with pytest.raises(ConfigError, match="policy"):
        make_policy(name)
