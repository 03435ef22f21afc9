"""The fleet: the workers, and the way of a request to one of them and, if that fails, to another.

A request goes to the worker the policy chooses among those that serve its model, are healthy, are not draining and whose
circuit breaker lets it pass. Until its first output it may be sent elsewhere, within the retry budget; after that, what was
sent cannot be unsent and an error is the stream's last word.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import cast

import structlog

from foreword.errors import ConfigError, ModelNotFound, WorkerError, WorkerUnavailable
from foreword.gateway.assignment import Assignment, Relay
from foreword.gateway.member import Client, Forwarder, Generator, Member, MemberStatistics, Sample, member_samples
from foreword.gateway.policies import Policy, RoutingRequest, choose_worker
from foreword.gateway.prefix_view import Lookup, PrefixView, Prompt
from foreword.gateway.resilience import RetryBudget, refusing_when_stopped, unavailable
from foreword.generation import GenerateOutput, GenerateRequest

log = structlog.get_logger()

HEALTH_INTERVAL = 5.0
"""Seconds between health checks of each worker that is well; a check may take as long."""
COMEBACK_INTERVAL = 1.0
"""Seconds between health checks of each worker that is not: what is back is used at once."""
MAX_ATTEMPTS = 3
"""Workers that one request is sent to at most."""
PREFIX_KEYS = 4
"""Blocks of a prompt's opening that ``prefix_hash`` goes by: 256 tokens."""

Follow = Callable[[Client, PrefixView], "asyncio.Task[None] | None"]
"""Starts following a worker's KV events, if it has any; called when the worker was first reached."""


class Fleet:
    """Owns the workers: starts and stops them, checks their health, routes requests to them.

    Args:
        policy: chooses among the workers that can take a request.
        follow: how workers' KV events are followed.
        greet: called with a worker that was reached for the first time or again, before it gets requests.
        on_failure: called with the name of a worker that failed a request.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        policy: Policy,
        workers: Iterable[Client] = (),
        *,
        follow: Follow | None = None,
        greet: Callable[[Client], Awaitable[None]] | None = None,
        on_failure: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.view = PrefixView()
        self._policy = policy
        self._follow = follow
        self._greet = greet
        self._on_failure = on_failure
        self._clock = clock
        self._budget = RetryBudget()
        self._retries = 0
        self._members: dict[str, Member] = {}
        for worker in workers:
            self._enlist(worker)

    def _enlist(self, worker: Client) -> Member:
        if worker.name in self._members:
            raise ConfigError(f"The worker {worker.name} is in the fleet already.", worker=worker.name)
        member = self._members[worker.name] = Member(worker)
        self.view.add_worker(worker.name)
        return member

    # The workers

    @property
    def workers(self) -> tuple[Client, ...]:
        """All of them."""
        return tuple(member.client for member in self._members.values())

    @property
    def models(self) -> list[str]:
        """Names of the models served, each once, in the workers' order."""
        return list(dict.fromkeys(model for member in self._members.values() for model in member.models))

    @property
    def ready(self) -> bool:
        """Whether there are models and every one has a healthy worker."""
        healthy = {model for member in self._members.values() if member.healthy for model in member.models}
        return bool(self._members) and all(model in healthy for model in self.models) and bool(self.models)

    def find_model(self, model: str) -> Client:
        """Any worker of a model, the healthy first; raises ModelNotFound, or WorkerUnavailable while no model is known."""
        serving = [member for member in self._members.values() if model in member.models]
        if serving:
            return max(serving, key=lambda member: member.state == "healthy").client
        if self._members and not self.models:
            raise WorkerUnavailable(
                "No worker was reached yet, so no model is known.", hint="Try again.", retry_after=1
            )
        known = ", ".join(map(repr, self.models)) or "none"
        raise ModelNotFound(f"There is no model {model[:200]!r}.", hint=f"Served here: {known}.", model=model)

    async def start(self) -> None:
        """Start every worker. One that cannot be reached yet is tried again at each health check."""
        await asyncio.gather(*(self._start(member) for member in self._members.values()))

    async def _start(self, member: Member) -> None:
        try:
            with refusing_when_stopped(member.name):
                await member.client.start()
        except WorkerUnavailable as error:
            log.warning("worker.unreachable", worker=member.name, error=str(error))
        await self.check(member.name)

    async def stop(self) -> None:
        """Stop every worker."""
        await asyncio.gather(*(self._stop(member) for member in self._members.values()))

    async def _stop(self, member: Member) -> None:
        if member.events is not None:
            member.events.cancel()
            await asyncio.gather(member.events, return_exceptions=True)
        with contextlib.suppress(WorkerError):
            await member.client.stop()

    async def add(self, worker: Client) -> MemberStatistics:
        """Take a worker in while running; raises ConfigError when there is one by its name, or it cannot be started at all.

        One that cannot be started, or whose adding was given up, is not left behind.
        """
        member = self._enlist(worker)
        try:
            await self._start(member)
        except BaseException:
            await self._let_go(member)
            raise
        log.info("worker.added", worker=worker.name, healthy=member.healthy)
        return member.statistics(self._clock())

    async def remove(self, name: str, *, drain_seconds: float = 0.0) -> None:
        """Send a worker no more requests, give those it has some time, then let it go; raises ConfigError."""
        member = self._member(name)
        member.draining = True
        if member.load.requests:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(drain_seconds):
                    await member.idle.wait()
        if self._has(member):
            await self._let_go(member)
            log.info("worker.removed", worker=name, unfinished=member.load.requests)

    def _has(self, member: Member) -> bool:
        """Whether it was not removed meanwhile."""
        return self._members.get(member.name) is member

    async def _let_go(self, member: Member) -> None:
        if self._has(member):
            del self._members[member.name]
            self.view.remove_worker(member.name)
        await self._stop(member)

    def _member(self, name: str) -> Member:
        member = self._members.get(name)
        if member is None:
            raise _no_worker(name, self._members)
        return member

    async def check_forever(self) -> None:
        """Ask every worker how it is, again and again, until cancelled."""
        for tick in itertools.count(1):
            await asyncio.sleep(COMEBACK_INTERVAL)
            await self.check_due(tick)

    async def check_due(self, tick: int) -> None:
        """Ask those whose turn it is: who is away at every tick, who is well at every few."""
        everyone = tick % round(HEALTH_INTERVAL / COMEBACK_INTERVAL) == 0
        due = [member for member in self._members.values() if everyone or not member.healthy]
        await asyncio.gather(*map(self._check_apart, due))

    async def _check_apart(self, member: Member) -> None:
        """Check one of many: a fault in it makes that one unhealthy and leaves the others' checks going."""
        try:
            await self._check(member)
        except ConfigError:
            log.info("worker.gone_already", worker=member.name)
        except Exception:
            log.exception("worker.check_fault", worker=member.name)
            member.healthy = False

    async def check(self, name: str) -> bool:
        """Ask one worker how it is; raises ConfigError when there is none by that name."""
        return await self._check(self._member(name))

    async def _check(self, member: Member) -> bool:
        healthy = await member.is_well(HEALTH_INTERVAL)
        if not self._has(member):
            await self._stop(member)  # removed while it was asked, it may have connected anew
            raise _no_worker(member.name, self._members)
        if healthy and not member.healthy:
            await self._reached(member)
        elif member.healthy and not healthy:
            log.warning("worker.unhealthy", worker=member.name)
        member.healthy = healthy
        return healthy

    async def _reached(self, member: Member) -> None:
        """A worker came, or came back: it may be in a new life, which holds nothing that was sent to the one before."""
        log.info("worker.healthy", worker=member.name, models=member.models)
        self.view.clear_sent(member.name)
        if self._greet is not None:
            await self._greet(member.client)
        if self._follow is not None and member.events is None and self._has(member):
            member.events = self._follow(member.client, self.view)

    # Requests

    async def generate(self, model: str, request: GenerateRequest) -> AsyncGenerator[tuple[Assignment, GenerateOutput]]:
        """Run a request, on another worker when one fails before its first output.

        Raises:
            WorkerUnavailable: no worker could take it.
            WorkerError: a worker failed after its first output.
        """
        prompt = Prompt(request.token_ids, cache_salt=request.cache_salt, sticky_key=request.routing_key)
        failures: list[WorkerError] = []
        for assignment in self._attempts(model, prompt, failures, forwards=False):
            try:
                async with aclosing(self._run(assignment, request)) as outputs:
                    async for output in outputs:
                        yield assignment, output
            except WorkerError as error:
                if not self._may_retry(assignment, error):
                    raise
                failures.append(error)
            else:
                return

    async def _run(self, assignment: Assignment, request: GenerateRequest) -> AsyncGenerator[GenerateOutput]:
        with self._in_flight(assignment):
            outputs = cast("Generator", assignment.member.client).generate(request)
            try:
                async for output in outputs:
                    if not assignment.begun:
                        assignment.note_first_output(output.num_cached_tokens)
                    yield output
            finally:
                if (close := getattr(outputs, "aclose", None)) is not None:
                    await close()
            assignment.member.succeed()

    async def forward(
        self, model: str, prompt: Prompt, *, method: str, path: str, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> tuple[Assignment, Relay]:
        """Pass an HTTP request on, to another worker when one fails before the first bytes of its answer's body.

        The answer must be read to its end or closed: until then the request counts as in flight.

        Raises:
            WorkerUnavailable: no worker could take it.
            WorkerError: the worker broke the connection and no retry was left.
        """
        passed = tuple(headers)
        failures: list[WorkerError] = []
        for assignment in self._attempts(model, prompt, failures, forwards=True):
            client = cast("Forwarder", assignment.member.client)
            try:
                with contextlib.ExitStack() as stack:
                    stack.enter_context(self._in_flight(assignment))
                    response = await client.forward(method, path, passed, body)
                    relay = Relay(assignment, response, stack.pop_all())
                await relay.open()
            except WorkerError as error:
                if not self._may_retry(assignment, error):
                    raise
                failures.append(error)
            else:
                return assignment, relay
        raise AssertionError  # _attempts raises before it ends

    def _attempts(
        self, model: str, prompt: Prompt, failures: list[WorkerError], *, forwards: bool
    ) -> Iterator[Assignment]:
        """One worker after the other, until the caller has an answer; raises WorkerUnavailable when none is left."""
        self.find_model(model)
        self._budget.deposit()
        lookup = self.view.look_up(prompt)
        tried: list[str] = []
        while len(tried) < MAX_ATTEMPTS:
            now = self._clock()
            fit = [
                member
                for name, member in self._members.items()
                if name not in tried and member.serves(model, forwards=forwards) and member.can_begin(now)
            ]
            if not fit:
                break
            assignment = self._assign(fit, prompt, lookup, now)
            tried.append(assignment.name)
            yield assignment
        now = self._clock()
        waits = [
            member.breaker.retry_after(now)
            for member in self._members.values()
            if member.serves(model, forwards=forwards)
        ]
        raise unavailable(model, waits, failures)

    def _assign(self, fit: list[Member], prompt: Prompt, lookup: Lookup, now: float) -> Assignment:
        candidates = [member.candidate(lookup.expected.get(member.name, 0), now) for member in fit]
        opening = lookup.keys[min(len(lookup.keys), PREFIX_KEYS) - 1] if lookup.keys else prompt.text
        request = RoutingRequest(prompt.num_tokens, opening, prompt.sticky_key)
        chosen = choose_worker(self._policy, request, candidates)
        member = fit[chosen]
        exact = prompt.token_ids is not None and self.view.is_exact(member.name)
        predicted = lookup.predicted.get(member.name, 0) if exact else None
        cached = candidates[chosen].cached_tokens
        return Assignment(member, self.view, lookup.keys, prompt.num_tokens - cached, cached, predicted)

    @contextlib.contextmanager
    def _in_flight(self, assignment: Assignment) -> Iterator[None]:
        """Count a request at its worker, and what it will have cached, until it is over."""
        member = assignment.member
        member.begin(assignment.uncached_tokens, self._clock())
        self.view.begin(member.name, assignment.keys)
        try:
            with refusing_when_stopped(member.name):
                yield
        except WorkerError as error:
            self._note_failure(member, error)
            raise
        finally:
            if not assignment.begun:
                self.view.prefilled(member.name, assignment.keys)
            member.end(0 if assignment.begun else assignment.uncached_tokens)

    def _note_failure(self, member: Member, error: WorkerError) -> None:
        log.warning("worker.failed", worker=member.name, error=str(error))
        unreachable = isinstance(error, WorkerUnavailable) and "status" not in error.evidence
        member.fail(self._clock(), unreachable=unreachable)
        if self._on_failure is not None:
            self._on_failure(member.name)

    def _may_retry(self, assignment: Assignment, error: WorkerError) -> bool:
        """Whether a failed request goes elsewhere. A worker that turned it away did no work: that costs no budget."""
        if assignment.begun:
            return False
        allowed = isinstance(error, WorkerUnavailable) or self._budget.withdraw()
        self._retries += allowed
        return allowed

    @property
    def has_forwarders(self) -> bool:
        """Whether any worker takes HTTP requests as they are."""
        return any(member.forwards for member in self._members.values())

    def forwards(self, model: str) -> bool:
        """Whether requests for the model are passed on as they are; raises ModelNotFound."""
        return hasattr(self.find_model(model), "forward")

    def is_adapter(self, model: str) -> bool:
        """Whether the name is of a LoRA adapter rather than of a whole model; raises ModelNotFound."""
        return model in getattr(self.find_model(model), "adapters", ())

    # Telling

    def statistics(self) -> tuple[MemberStatistics, ...]:
        """Every worker's state and counts."""
        now = self._clock()
        return tuple(member.statistics(now) for member in self._members.values())

    def samples(self) -> Iterator[Sample]:
        """The workers' metrics."""
        yield "worker_retries", (), self._retries
        for member in self.statistics():
            yield from member_samples(member)

    def check_integrity(self) -> None:
        """Raise AssertionError when the books do not balance."""
        self.view.index.check_integrity()
        for member in self._members.values():
            member.load.check_integrity()


def _no_worker(name: str, known: Iterable[str]) -> ConfigError:
    return ConfigError(
        f"There is no worker {name[:200]!r}.", hint=f"Workers: {', '.join(known) or 'none'}.", worker=name
    )
