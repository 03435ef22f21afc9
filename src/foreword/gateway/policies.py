"""Routing policies: which worker takes a request.

A policy sees one request and the workers that may take it, each with what it is expected to hold of the prompt and how
busy it is. It returns the position of its choice. It has no clock and no I/O; the router and ``foreword route`` call the
same objects, so what a trace shows of a policy is what it does in service.

``cache_aware`` counts everything in prompt tokens: what the worker would have to prefill, what it must prefill first, and what
it was sent lately. The last spreads new prefixes evenly, and with them the cache space they take.
"""

from __future__ import annotations

import hashlib
import importlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from foreword.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """What a policy knows of a request.

    Attributes:
        num_tokens: prompt length, in tokens.
        prefix_key: the opening of the prompt, for policies that hash it; empty when the prompt is empty.
        sticky_key: the client's ``prompt_cache_key``: requests that share it like to meet on one worker.
    """

    num_tokens: int
    prefix_key: bytes = b""
    sticky_key: str | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One worker that may take the request, as it is now.

    Attributes:
        cached_tokens: prompt tokens whose prefill this worker is expected to skip.
        requests: requests sent to it and not finished.
        waiting: requests it says it has queued.
        backlog_tokens: uncached prompt tokens sent to it whose first output has not come yet.
        recent_tokens: uncached prompt tokens sent to it, halving every ``RECENT_HALF_LIFE`` seconds.
    """

    name: str
    cached_tokens: int = 0
    requests: int = 0
    waiting: int = 0
    backlog_tokens: int = 0
    recent_tokens: float = 0.0


RECENT_HALF_LIFE = 120.0
"""Seconds. Long against one prefill, short against a worker's life: a newcomer is not flooded to catch up."""


class Policy(Protocol):
    """Chooses a worker. May keep state of its own (a turn, a generator); never changes what it is given."""

    def choose(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> int:
        """Return an index into ``candidates``, which is never empty."""


def choose_worker(policy: Policy, request: RoutingRequest, candidates: Sequence[Candidate]) -> int:
    """Ask a policy; raises ConfigError when it fails or chooses none of the candidates, as one of a user's own may."""
    try:
        chosen = policy.choose(request, candidates)
    except Exception as error:
        raise ConfigError(
            f"The routing policy {type(policy).__name__} failed: {type(error).__name__}: {error}.",
            hint="Its choose must return an index for any request and candidates.",
        ) from error
    if not isinstance(chosen, int) or not 0 <= chosen < len(candidates):
        raise ConfigError(
            f"The routing policy {type(policy).__name__} chose {chosen!r} of {len(candidates)} workers.",
            hint="Its choose must return an index into the candidates.",
        )
    return chosen


def load(candidate: Candidate) -> tuple[int, int, int, float]:
    """How busy a worker is, the most telling number first; smaller is freer."""
    return candidate.requests, candidate.waiting, candidate.backlog_tokens, candidate.recent_tokens


def rank_by_hash(key: bytes, candidates: Sequence[Candidate]) -> list[int]:
    """Order workers by rendezvous hash: a worker that comes or goes moves only the keys that were its own."""

    def score(index: int) -> bytes:
        name = candidates[index].name.encode()
        return hashlib.blake2b(key, key=hashlib.blake2b(name, digest_size=32).digest(), digest_size=8).digest()

    return sorted(range(len(candidates)), key=score)


def choose_home(key: bytes, candidates: Sequence[Candidate], overload: float = 1.25) -> int:
    """The first worker in the key's order that is not overloaded (consistent hashing with bounded loads).

    Overloaded means more than ``overload`` times its even share of the requests in flight, this one included.
    """
    limit = overload * (sum(candidate.requests for candidate in candidates) + 1) / len(candidates)
    for index in rank_by_hash(key, candidates):
        if candidates[index].requests + 1 <= max(limit, 1.0):
            return index
    return min(range(len(candidates)), key=lambda index: load(candidates[index]))


@dataclass(slots=True)
class CacheAware:
    """Least work: uncached tokens, plus a share of the backlog before them, plus a small share of what was sent lately.

    A token saved is worth some waiting: it shortens every later request's wait too. On the Mooncake conversation trace a
    ``queue`` of 1 (wait for nothing) hits 5 points fewer tokens than 0.05 and is 7 % faster to first token; above 0.05 hits
    fall below 35.5 %. ``benchmarks/routing.py`` prints the sweep.

    Two bounds make a popular prefix spill to other workers: backlog over ``spill_tokens`` counts in full, and a worker with
    more than 1.5 times the mean of requests in flight, plus ``spill_requests``, is passed over.
    """

    queue: float = 0.05
    balance: float = 0.005
    spill_tokens: int = 131_072
    spill_requests: int = 16

    def choose(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> int:
        """Return the worker with the least work; a sticky key decides where nothing is cached anywhere."""
        if request.sticky_key is not None and not any(candidate.cached_tokens for candidate in candidates):
            return choose_home(request.sticky_key.encode(), candidates)
        limit = 1.5 * sum(candidate.requests for candidate in candidates) / len(candidates) + self.spill_requests
        fit = [index for index, candidate in enumerate(candidates) if candidate.requests <= limit]
        return min(fit, key=lambda index: self._work(candidates[index]))

    def _work(self, candidate: Candidate) -> tuple[float, int, int]:
        backlog = self.queue * candidate.backlog_tokens + max(0, candidate.backlog_tokens - self.spill_tokens)
        work = backlog + self.balance * candidate.recent_tokens - candidate.cached_tokens
        return work, candidate.waiting, candidate.requests


@dataclass(slots=True)
class RoundRobin:
    """Each worker in turn."""

    _turn: int = -1

    def choose(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> int:  # noqa: ARG002 - the interface
        """Return the worker after the last one."""
        self._turn += 1
        return self._turn % len(candidates)


@dataclass(slots=True)
class Random:
    """Any worker."""

    rng: random.Random = field(default_factory=random.Random)

    def choose(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> int:  # noqa: ARG002 - the interface
        """Return a worker, each equally likely."""
        return self.rng.randrange(len(candidates))


@dataclass(slots=True)
class LeastLoad:
    """The worker with the fewest requests in flight."""

    def choose(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> int:  # noqa: ARG002 - the interface
        """Return the least loaded worker."""
        return min(range(len(candidates)), key=lambda index: load(candidates[index]))


@dataclass(slots=True)
class PowerOfTwo:
    """The less loaded of two workers drawn at random: near to least load without herding on one worker's report."""

    rng: random.Random = field(default_factory=random.Random)

    def choose(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> int:  # noqa: ARG002 - the interface
        """Return the less loaded of two."""
        pair = self.rng.sample(range(len(candidates)), min(2, len(candidates)))
        return min(pair, key=lambda index: load(candidates[index]))


@dataclass(slots=True)
class PrefixHash:
    """Requests that open alike go to one worker, while it is not overloaded."""

    overload: float = 1.25

    def choose(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> int:
        """Return the home of the sticky key or, without one, of the prompt's opening."""
        key = request.prefix_key if request.sticky_key is None else request.sticky_key.encode()
        return choose_home(key, candidates, self.overload)


@dataclass(slots=True)
class Sticky:
    """Gives a policy that ignores the cache the stickiness of ``prompt_cache_key``."""

    policy: Policy

    def choose(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> int:
        """Return the key's home; without a key, the policy's choice."""
        if request.sticky_key is None:
            return self.policy.choose(request, candidates)
        return choose_home(request.sticky_key.encode(), candidates)


POLICIES: dict[str, Callable[[random.Random], Policy]] = {
    "cache_aware": lambda _rng: CacheAware(),
    "least_load": lambda _rng: Sticky(LeastLoad()),
    "power_of_two": lambda rng: Sticky(PowerOfTwo(rng)),
    "prefix_hash": lambda _rng: PrefixHash(),
    "random": lambda rng: Sticky(Random(rng)),
    "round_robin": lambda _rng: Sticky(RoundRobin()),
}


def make_policy(name: str, rng: random.Random | None = None) -> Policy:
    """Return a policy by its name, or one's own by ``module:Class``; raises ConfigError.

    Args:
        name: a key of ``POLICIES``, or the import path of a class that needs no arguments.
        rng: the source of chance for policies that draw.
    """
    if name in POLICIES:
        return POLICIES[name](rng or random.Random())  # noqa: S311 - no secret depends on it
    if ":" in name:
        return _import_policy(name)
    raise ConfigError(
        f"There is no routing policy {name!r}.",
        hint=f"Use one of {', '.join(POLICIES)}, or module:Class for one of your own.",
        policy=name,
    )


def _import_policy(path: str) -> Policy:
    module, _, attribute = path.partition(":")
    try:
        policy: Policy = getattr(importlib.import_module(module), attribute)()
    except Exception as error:  # whatever the user's module raises
        raise ConfigError(
            f"The routing policy {path!r} cannot be made: {type(error).__name__}: {error}.",
            hint="Name an importable class that takes no arguments.",
            policy=path,
        ) from error
    if not callable(getattr(policy, "choose", None)):
        raise ConfigError(
            f"The routing policy {path!r} has no method choose.",
            hint="Give it choose(request, candidates) -> int, as foreword.gateway.policies.Policy says.",
            policy=path,
        )
    return policy
