"""Following a worker's events outlives whatever goes wrong in it."""

import asyncio

import pytest

from foreword.core.events import AllBlocksCleared, KVCacheEvent
from foreword.gateway import kv_follow
from foreword.gateway.kv_events import EventSink
from foreword.gateway.kv_follow import keep_following


class Sink:
    """Counts how often everything was forgotten."""

    def __init__(self) -> None:
        self.clears = 0
        self.applied: list[KVCacheEvent] = []

    def apply(self, event: KVCacheEvent) -> None:
        """Note it."""
        self.applied.append(event)

    def clear(self) -> None:
        """Note that."""
        self.clears += 1


async def test_a_fault_costs_what_is_known_and_not_the_later_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's blocks are forgotten, since they may be stale by now, and its events are followed anew."""
    monkeypatch.setattr(kv_follow, "RESTART_SECONDS", 0)
    sink = Sink()
    lives = 0

    async def live(sink: EventSink) -> None:
        nonlocal lives
        lives += 1
        if lives < 3:
            raise OverflowError
        sink.apply(AllBlocksCleared())

    await keep_following("w", live, sink)
    assert (lives, sink.clears, len(sink.applied)) == (3, 2, 1)


async def test_it_ends_when_it_is_cancelled() -> None:
    """A worker that is let go of is not followed on."""
    sink = Sink()

    async def live(_sink: EventSink) -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(keep_following("w", live, sink))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sink.clears == 0
