"""HTTP requests on their way through the fleet: passed on, sent elsewhere, cut short, and off the books at the end."""

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest
from tests.gateway.test_fleet import FakeWorker, started

from foreword.errors import WorkerError, WorkerUnavailable
from foreword.gateway.fleet import Fleet
from foreword.gateway.policies import LeastLoad
from foreword.gateway.prefix_view import Prompt

EVENTS = ((b"Content-Type", b"text/event-stream; charset=utf-8"),)


class FakeResponse:
    """An answer in chunks; the last may be an error."""

    def __init__(
        self, chunks: list[bytes | Exception], status: int = 200, headers: Any = ((b"x-worker", b"1"),)
    ) -> None:
        self.status, self.headers, self.chunks, self.closed = status, headers, list(chunks), False

    async def read_chunk(self) -> bytes:
        """The next."""
        chunk = self.chunks.pop(0) if self.chunks else b""
        if isinstance(chunk, Exception):
            raise chunk
        return chunk

    def close(self) -> None:
        """Noted."""
        self.closed = True


class FakeForwarder(FakeWorker):
    """An HTTP worker."""

    def __init__(self, name: str, *answers: Any) -> None:
        super().__init__(name)
        self.answers = list(answers)
        self.seen: list[Any] = []

    async def forward(self, method: str, path: str, headers: Any, body: bytes) -> Any:
        """The next answer."""
        self.seen.append((method, path, headers, body))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def forward(fleet: Fleet, text: bytes = b"hello") -> Any:
    """Pass one request on."""
    return await fleet.forward("m", Prompt(text=text), method="POST", path="/v1/x", headers=[(b"a", b"b")], body=text)


async def test_bytes_pass_through_an_http_worker() -> None:
    """Method, path, headers and body go; status, headers and chunks come."""
    worker = FakeForwarder("a", FakeResponse([b"one", b"two"]))
    fleet = await started(worker)
    assignment, response = await forward(fleet)
    assert (assignment.name, response.status, response.headers) == ("a", 200, ((b"x-worker", b"1"),))
    assert worker.seen == [("POST", "/v1/x", ((b"a", b"b"),), b"hello")]
    assert fleet.statistics()[0].requests == 1
    assert [await response.read_chunk() for _ in range(3)] == [b"one", b"two", b""]
    assert (fleet.statistics()[0].requests, fleet.statistics()[0].served) == (0, 1)
    fleet.check_integrity()


async def test_an_answer_closed_unread_is_off_the_books() -> None:
    """A client that leaves before the first byte holds no slot."""
    answer = FakeResponse([b"one"])
    fleet = await started(FakeForwarder("a", answer))
    _, response = await forward(fleet)
    response.close()
    response.close()
    assert (answer.closed, fleet.statistics()[0].requests, fleet.statistics()[0].backlog_tokens) == (True, 0, 0)
    fleet.check_integrity()


async def test_a_worker_that_turns_a_request_away_is_not_unhealthy() -> None:
    """A 503 sends the request elsewhere; the worker stays, since it was reached."""
    busy = FakeForwarder("a", WorkerUnavailable("busy", status=503))
    fleet = await started(busy, FakeForwarder("b", FakeResponse([b"ok"])), policy=LeastLoad())
    assignment, response = await forward(fleet)
    assert (assignment.name, await response.read_chunk()) == ("b", b"ok")
    response.close()
    assert fleet.statistics()[0].state == "healthy"


async def test_an_answer_that_breaks_off_is_an_error() -> None:
    """The error reaches whoever relays it, and counts against the worker."""
    fleet = await started(FakeForwarder("a", FakeResponse([b"one", WorkerError("broke off")])))
    _, response = await forward(fleet)
    assert await response.read_chunk() == b"one"
    with pytest.raises(WorkerError, match="broke off"):
        await response.read_chunk()
    response.close()
    assert (fleet.statistics()[0].failures, fleet.statistics()[0].requests) == (1, 0)
    fleet.check_integrity()


async def test_an_answer_that_breaks_off_before_its_first_byte_goes_elsewhere() -> None:
    """A head is no output: a worker killed while it prefills has sent one already. A stream of nothing is the same."""
    for nothing in (FakeResponse([WorkerError("broke off")]), FakeResponse([], headers=EVENTS)):
        fleet = await started(
            FakeForwarder("a", nothing), FakeForwarder("b", FakeResponse([b"ok"])), policy=LeastLoad()
        )
        assignment, response = await forward(fleet)
        assert (assignment.name, await response.read_chunk(), await response.read_chunk()) == ("b", b"ok", b"")
        first, second = fleet.statistics()
        assert (first.failures, first.requests, second.served, second.requests) == (1, 0, 1, 0)
        assert nothing.closed
        fleet.check_integrity()


async def test_giving_up_before_the_first_byte_frees_everything() -> None:
    """A client that leaves while the worker prefills holds no slot."""

    class Silent(FakeResponse):
        async def read_chunk(self) -> bytes:
            await asyncio.Event().wait()
            return b""

    answer = Silent([])
    fleet = await started(FakeForwarder("a", answer))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await forward(fleet)
    assert (answer.closed, fleet.statistics()[0].requests, fleet.statistics()[0].backlog_tokens) == (True, 0, 0)
    fleet.check_integrity()


@pytest.mark.parametrize(
    "last",
    [
        b"data: [DONE]\n\n",
        b"data: [DONE]",
        b'data: {"choices": [{"delta": {}, "finish_reason": "length"}]}\n\n',
        b'event: message_stop\r\ndata: {"type": "message_stop"}\r\n\r\n',
        b'event: response.completed\ndata: {"response": {"output": "' + b"x" * 9000 + b'"}}\n\n',
        b'data: {"error": {"message": "engine died"}}\n\n',
    ],
)
@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_a_stream_is_whole_when_its_last_event_came(last: bytes, size: int) -> None:
    """In the words of each API, in pieces of any size; one that ends before it failed, though its connection did not."""
    whole = b'data: {"choices": [{"delta": {"content": "\\ndata: [DONE]"}, "finish_reason": null}]}\n\n' + last
    for sent, failures in ((whole, 0), (whole[: -len(last)], 1), (whole[: -len(last) + 9], 1)):
        pieces: list[bytes | Exception] = [sent[i : i + size] for i in range(0, len(sent), size)]
        fleet = await started(FakeForwarder("a", FakeResponse(pieces, headers=EVENTS)))
        _, response = await forward(fleet)
        read, expected = b"", pytest.raises(WorkerError, match="before it was whole") if failures else nullcontext()
        with expected:
            while chunk := await response.read_chunk():
                read += chunk
        response.close()
        assert (read, fleet.statistics()[0].failures, fleet.statistics()[0].served) == (sent, failures, 1 - failures)
        fleet.check_integrity()


async def test_http_requests_follow_their_text() -> None:
    """Where no ids are known, what the prompt's text begins with decides."""
    answers = [FakeResponse([]) for _ in range(20)]
    fleet = await started(*(FakeForwarder(name, *answers[:9]) for name in "ab"))
    first, response = await forward(fleet, b"system prompt " * 100 + b"one")
    response.close()
    other, response = await forward(fleet, b"another prompt " * 100)
    response.close()
    again, response = await forward(fleet, b"system prompt " * 100 + b"two, which is longer")
    response.close()
    assert first.name != other.name
    assert again.name == first.name
