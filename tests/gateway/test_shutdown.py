"""SIGTERM drains: nothing new is taken, what runs may end, and what does not is told."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import Callable

import httpx

from foreword.testing.server import MODEL, Running, serve
from foreword.testing.workers import FakeWorker

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}


class Slow(FakeWorker):
    """Holds each answer after its third token until it is let go."""

    def __init__(self) -> None:
        super().__init__(answer=b"Paris")
        self.go = threading.Event()

    async def _misbehave(self, number: int) -> None:
        if number == 3:
            await asyncio.to_thread(self.go.wait, 5)


def stream_in_background(running: Running) -> tuple[threading.Thread, list[str]]:
    """A streaming client on a thread, and where its text will be."""
    texts: list[str] = []
    thread = threading.Thread(
        target=lambda: texts.append(httpx.post(f"{running.url}/v1/chat/completions", json=BODY, timeout=10).text)
    )
    thread.start()
    return thread, texts


def wait_for(condition: Callable[[], bool]) -> None:
    """Until something is so, for at most five seconds."""
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def test_drain_lets_requests_end() -> None:
    """A stream in work ends as it should; meanwhile readiness and new requests are 503; then the server stops."""
    worker = Slow()
    with serve([worker]) as running, httpx.Client(base_url=running.url) as client:
        thread, texts = stream_in_background(running)
        wait_for(lambda: worker.running == 1)
        running.server.handle_exit(signal.SIGTERM, None)
        readiness = client.get("/readiness")
        assert (readiness.status_code, readiness.json()["error"]["code"]) == (503, "draining")
        assert client.get("/liveness").status_code == 200
        refused = client.post("/v1/chat/completions", json=BODY)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        worker.go.set()
        thread.join(5)
        assert texts[0].endswith("data: [DONE]\n\n")
        assert "error" not in texts[0]
        wait_for(lambda: not running.thread.is_alive())
        assert worker.stopped


def test_drain_timeout_aborts_with_an_error_event() -> None:
    """When the time is up a stream ends in an error event, and the worker's request is aborted."""
    worker = Slow()
    with serve([worker], drain_timeout=0.2) as running:
        thread, texts = stream_in_background(running)
        wait_for(lambda: worker.running == 1)
        running.server.begin_draining()
        thread.join(5)
        events = texts[0].split("\n\n")
        assert events[-2] == "data: [DONE]"
        assert json.loads(events[-3].removeprefix("data: "))["error"]["code"] == "draining"
        wait_for(lambda: not running.thread.is_alive())
        assert len(worker.aborted) == 1


def test_idle_server_stops_at_once() -> None:
    """With nothing in work there is nothing to wait for."""
    with serve() as running:
        httpx.get(f"{running.url}/health")
        started = time.monotonic()
        running.server.begin_draining()
        running.thread.join(5)
        assert not running.thread.is_alive()
        assert time.monotonic() - started < 2
