"""The fleet sends each request where it belongs, elsewhere when that fails, and keeps its books."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest

from foreword.core.events import AllBlocksCleared, BlockStored
from foreword.errors import ConfigError, ModelNotFound, RequestError, WorkerError, WorkerUnavailable
from foreword.gateway.fleet import Fleet
from foreword.gateway.policies import CacheAware, LeastLoad, RoundRobin
from foreword.gateway.prefix_view import Prompt
from foreword.generation import GenerateOutput, GenerateRequest, WorkerStatistics


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now


class FakeWorker:
    """Answers every request with ``tokens``, or fails: before the first output, or after it."""

    max_model_len = 4096

    def __init__(self, name: str, model: str = "m", *, error: Exception | None = None, fail_after: int = 0) -> None:
        self.name, self.model = name, model
        self.error, self.fail_after = error, fail_after
        self.healthy, self.cached, self.taken, self.aborted = True, 0, 0, 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def start(self) -> None:
        """Nothing to do."""

    async def stop(self) -> None:
        """Nothing to free."""

    async def check_health(self) -> bool:
        """As told."""
        return self.healthy

    def statistics(self) -> WorkerStatistics:
        """Never busy."""
        return WorkerStatistics()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateOutput]:
        """Three tokens, one at a time."""
        self.taken += 1
        finished = False
        try:
            for step in range(3):
                await self.gate.wait()
                if self.error is not None and step == self.fail_after:
                    finished = True
                    raise self.error
                yield GenerateOutput(request.request_id, (step,), "stop" if step == 2 else None, None, 0, self.cached)
            finished = True
        finally:
            self.aborted += not finished


async def started(*workers: Any, **options: Any) -> Fleet:
    """A fleet of these workers, all checked."""
    fleet = Fleet(options.pop("policy", CacheAware()), workers, **options)
    await fleet.start()
    return fleet


def request(tokens: Iterable[int] = range(100), **fields: Any) -> GenerateRequest:
    """A request for these tokens."""
    return GenerateRequest("r", list(tokens), **fields)


async def ask(fleet: Fleet, asked: GenerateRequest | None = None, model: str = "m") -> tuple[str, list[int]]:
    """Which worker answered, and what."""
    ids: list[int] = []
    worker = ""
    async for assignment, output in fleet.generate(model, asked or request()):
        worker = assignment.name
        ids += output.token_ids
    fleet.check_integrity()
    return worker, ids


async def test_a_request_goes_where_its_blocks_are() -> None:
    """Events say who holds the prefix; the prediction is compared with what the worker reports."""
    fleet = await started(FakeWorker("a"), FakeWorker("b"))
    fleet.view.follow("b").apply(BlockStored([1, 2], None, list(range(32)), 16))
    fleet.find_model("m")
    worker_b = next(m for m in fleet._members.values() if m.name == "b").client
    assert isinstance(worker_b, FakeWorker)
    worker_b.cached = 32
    assert await ask(fleet) == ("b", [0, 1, 2])
    statistics = {member.name: member for member in fleet.statistics()}
    assert (statistics["b"].predicted_tokens, statistics["b"].reported_tokens, statistics["b"].mispredicted) == (
        32,
        32,
        0,
    )


async def test_without_events_requests_follow_what_was_sent() -> None:
    """A worker without events is taken to hold what it was sent lately."""
    fleet = await started(FakeWorker("a"), FakeWorker("b"), FakeWorker("c"))
    first, _ = await ask(fleet, request(range(200)))
    others = [await ask(fleet, request(range(1000 * n, 1000 * n + 200))) for n in range(1, 3)]
    assert {first, *(name for name, _ in others)} == {"a", "b", "c"}
    assert (await ask(fleet, request([*range(200), 7, 7])))[0] == first


async def test_requests_at_once_with_one_new_prefix_meet() -> None:
    """A prompt on its way counts as held: the second does not start the same prefill elsewhere."""
    workers = [FakeWorker("a"), FakeWorker("b")]
    fleet = await started(*workers)
    for worker in workers:
        fleet.view.follow(worker.name).apply(AllBlocksCleared())
        worker.gate.clear()
    tasks = [asyncio.create_task(ask(fleet, request([*range(400), n]))) for n in range(4)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sorted(worker.taken for worker in workers) == [0, 4]
    for worker in workers:
        worker.gate.set()
    await asyncio.gather(*tasks)
    assert fleet.view.look_up(Prompt(list(range(400)))).expected == {}  # no events came: nothing is believed to stay


async def test_a_failure_before_the_first_output_goes_elsewhere() -> None:
    """The client never learns of it."""
    broken = FakeWorker("a", error=WorkerUnavailable("gone"))
    fleet = await started(broken, FakeWorker("b"), policy=LeastLoad())
    assert await ask(fleet) == ("b", [0, 1, 2])
    assert broken.taken == 1
    assert [member.state for member in fleet.statistics()] == ["unhealthy", "healthy"]
    assert {name: value for name, _, value in fleet.samples() if name == "worker_retries"} == {"worker_retries": 1}


async def test_a_failure_after_the_first_output_is_the_last_word() -> None:
    """What was sent cannot be unsent: the error comes through and nobody else is asked."""
    other = FakeWorker("b")
    fleet = await started(FakeWorker("a", error=WorkerError("died"), fail_after=1), other, policy=LeastLoad())
    with pytest.raises(WorkerError, match="died"):
        await ask(fleet)
    assert other.taken == 0
    fleet.check_integrity()


async def test_a_wrong_request_is_not_tried_elsewhere() -> None:
    """A refusal is the request's fault, and no mark against the worker."""
    other = FakeWorker("b")
    fleet = await started(FakeWorker("a", error=RequestError("no such thing")), other, policy=LeastLoad())
    with pytest.raises(RequestError, match="no such thing"):
        await ask(fleet)
    assert (other.taken, fleet.statistics()[0].failures) == (0, 0)


async def test_retries_end_with_their_budget() -> None:
    """A fleet in which every worker fails is not asked three times for everything."""
    workers = [FakeWorker(name, error=WorkerError("broken")) for name in "abc"]
    fleet = await started(*workers, policy=RoundRobin())
    for member in fleet._members.values():
        member.breaker.threshold = 10_000
    for _ in range(100):
        with pytest.raises(WorkerError):
            await ask(fleet)
    assert 100 < sum(worker.taken for worker in workers) <= 100 + 10 + 100 // 5


async def test_a_breaker_keeps_requests_away_and_lets_one_probe() -> None:
    """After five failures in a row the worker gets nothing until its time is up."""
    clock, bad = Clock(), FakeWorker("a", error=WorkerError("broken"))
    fleet = await started(bad, policy=LeastLoad(), clock=clock)
    for _ in range(5):
        with pytest.raises(WorkerError):
            await ask(fleet)
    with pytest.raises(WorkerUnavailable) as caught:
        await ask(fleet)
    assert (bad.taken, caught.value.evidence["retry_after"]) == (5, 5.0)
    clock.now, bad.error = 5.0, None
    assert await ask(fleet) == ("a", [0, 1, 2])
    assert fleet.statistics()[0].breaker == "closed"


async def test_no_healthy_worker_is_said_with_when_to_retry() -> None:
    """503, not a hang; a health check brings the worker back."""
    worker = FakeWorker("a")
    fleet = await started(worker)
    worker.healthy = False
    await fleet.check("a")
    with pytest.raises(WorkerUnavailable, match="No worker of 'm'"):
        await ask(fleet)
    worker.healthy = True
    await fleet.check("a")
    assert (await ask(fleet))[0] == "a"


async def test_who_is_away_is_asked_for_more_often() -> None:
    """What comes back is used within a second; what is well is asked every fifth time, and leaving in between is no fault."""
    well, away = FakeWorker("well"), FakeWorker("away")
    fleet = await started(well, away)
    asked: list[str] = []

    def counting(worker: FakeWorker) -> Any:
        async def check_health() -> bool:
            asked.append(worker.name)
            if worker is well:
                await fleet.remove("away")  # while it is being asked
            return worker.healthy

        return check_health

    for worker in (well, away):
        worker.check_health = counting(worker)  # type: ignore[method-assign]
    away.healthy = False
    await fleet.check("away")
    for tick in range(1, 6):
        await fleet.check_due(tick)
    assert sorted(asked) == ["away"] * 6 + ["well"]
    assert [member.name for member in fleet.statistics()] == ["well"]


async def test_models_are_told_apart() -> None:
    """A request reaches only workers of its model; an unknown one names those there are."""
    fleet = await started(FakeWorker("a", "small"), FakeWorker("b", "large"))
    assert (await ask(fleet, model="large"))[0] == "b"
    assert fleet.models == ["small", "large"]
    with pytest.raises(ModelNotFound, match="Served here: 'small', 'large'"):
        await ask(fleet, model="medium")


async def test_before_any_worker_was_reached_a_model_is_not_unknown() -> None:
    """A gateway that starts before its workers asks to be asked again; once there are models, another is no model."""
    worker = FakeWorker("a", model="")
    fleet = await started(worker)
    with pytest.raises(WorkerUnavailable, match="No worker was reached yet"):
        await ask(fleet)
    worker.model = "m"
    with pytest.raises(ModelNotFound):
        await ask(fleet, model="other")
    with pytest.raises(ModelNotFound, match="Served here: none"):
        await ask(await started())


async def test_a_client_that_leaves_frees_everything() -> None:
    """Closing the stream aborts at the worker and takes the request off the books."""
    worker = FakeWorker("a")
    fleet = await started(worker)
    stream = fleet.generate("m", request())
    await anext(stream)
    await stream.aclose()
    assert (worker.aborted, fleet.statistics()[0].requests, fleet.statistics()[0].backlog_tokens) == (1, 0, 0)
    fleet.check_integrity()


async def test_draining_lets_requests_end() -> None:
    """A worker being removed takes nothing new and keeps what it has until the time is up."""
    worker, other = FakeWorker("a"), FakeWorker("b")
    fleet = await started(worker, policy=LeastLoad())
    worker.gate.clear()
    running = asyncio.create_task(ask(fleet))
    await asyncio.sleep(0)
    removing = asyncio.create_task(fleet.remove("a", drain_seconds=5))
    await asyncio.sleep(0)
    assert fleet.statistics()[0].state == "draining"
    await fleet.add(other)
    assert (await ask(fleet))[0] == "b"
    worker.gate.set()
    assert (await running) == ("a", [0, 1, 2])
    await removing
    assert [member.name for member in fleet.statistics()] == ["b"]


async def test_workers_come_and_go_by_name() -> None:
    """A name is taken once; one that is not there is an error naming those that are."""
    fleet = await started(FakeWorker("a"))
    with pytest.raises(ConfigError, match="already"):
        await fleet.add(FakeWorker("a"))
    with pytest.raises(ConfigError, match="Workers: a"):
        await fleet.remove("z")
    await fleet.remove("a")
    assert (fleet.models, fleet.ready) == ([], False)


async def test_a_worker_that_cannot_be_started_is_not_left_behind() -> None:
    """Whatever goes wrong as it is added: it can be added again, and holds nothing."""
    worker = FakeWorker("a")
    fleet = await started()
    for error in (ConfigError("its files cannot be read"), UnicodeError("its name is none")):
        worker.start = AsyncMock(side_effect=error)  # type: ignore[method-assign]
        worker.stop = AsyncMock()  # type: ignore[method-assign]
        with pytest.raises(type(error)):
            await fleet.add(worker)
        assert fleet.statistics() == ()
        worker.stop.assert_awaited_once()
    assert (await fleet.add(FakeWorker("a"))).state == "healthy"


async def test_a_worker_removed_while_it_is_added_is_gone() -> None:
    """No events are followed and nothing stays open, though it answers at last."""
    worker, followed = FakeWorker("a"), Mock()
    asked, answer = asyncio.Event(), asyncio.Event()

    async def check_health() -> bool:
        asked.set()
        await answer.wait()
        return True

    worker.check_health = check_health  # type: ignore[method-assign]
    worker.stop = AsyncMock()  # type: ignore[method-assign]
    fleet = await started(follow=followed)
    adding = asyncio.create_task(fleet.add(worker))
    await asked.wait()
    await fleet.remove("a")
    stopped = worker.stop.await_count
    answer.set()
    with pytest.raises(ConfigError, match="no worker 'a'"):
        await adding
    assert worker.stop.await_count > stopped
    assert (fleet.statistics(), followed.called) == ((), False)


async def test_a_fault_in_one_workers_check_leaves_the_others_checked() -> None:
    """It is unhealthy itself; who comes back is still found, for the checks go on."""
    faulty, other = FakeWorker("a"), FakeWorker("b")
    other.healthy = False
    fleet = await started(faulty, other)
    faulty.check_health = AsyncMock(side_effect=UnicodeError("label too long"))  # type: ignore[method-assign]
    other.healthy = True
    await fleet.check_due(5)
    assert [member.state for member in fleet.statistics()] == ["unhealthy", "healthy"]


async def test_a_client_stopped_under_its_calls_cancels_nobody() -> None:
    """Libraries end such calls with CancelledError: the checks of others, and who adds or asks, must not take it for theirs."""
    gone, other = FakeWorker("a"), FakeWorker("b")
    other.healthy = False
    fleet = await started(gone, other)
    stopped = AsyncMock(side_effect=asyncio.CancelledError())
    gone.check_health = stopped  # type: ignore[method-assign]
    other.healthy = True
    await fleet.check_due(5)
    assert [member.state for member in fleet.statistics()] == ["unhealthy", "healthy"]
    gone.healthy, gone.error = True, cast("Exception", asyncio.CancelledError())
    fleet = await started(gone)
    gone.check_health = AsyncMock(return_value=True)  # type: ignore[method-assign]
    await fleet.check("a")
    with pytest.raises(WorkerUnavailable):
        await ask(fleet)
    added = FakeWorker("c")
    added.start = added.check_health = stopped  # type: ignore[method-assign]
    assert (await fleet.add(added)).state == "unhealthy"


async def test_being_cancelled_oneself_is_still_that() -> None:
    """Whoever gives up on a worker gets no worker's error for it."""
    worker = FakeWorker("a")
    worker.gate.clear()
    fleet = await started(worker)
    asking = asyncio.create_task(ask(fleet))
    while not worker.taken:
        await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert fleet.statistics()[0].failures == 0


async def test_a_worker_that_comes_back_is_taken_to_be_empty() -> None:
    """What was sent to its life before is not counted on."""
    worker = FakeWorker("a")
    fleet = await started(worker)
    await ask(fleet, request(range(200)))
    assert fleet.view.look_up(Prompt(list(range(200)))).expected == {"a": 192}
    for worker.healthy in (False, True):
        await fleet.check("a")
    assert fleet.view.look_up(Prompt(list(range(200)))).expected == {}
