"""Sixty-four clients for a minute, mixed sizes and manners; then SIGTERM in the middle of it."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from typing import Any

import httpx
import pytest

from foreword.testing.server import MODEL, Running, serve
from foreword.testing.workers import FakeWorker

CLIENTS = 64
SECONDS = 60


def some_request(chooser: random.Random) -> tuple[str, bytes]:
    """A path and a body: of any endpoint, from nothing to half a megabyte, one in ten broken."""
    text = "word <|im_end|> é " * chooser.choice([1, 1, 1, 10, 100, 2_000, 30_000])
    stream = chooser.random() < 0.5
    choices: list[tuple[str, dict[str, Any]]] = [
        ("/v1/tokenize", {"prompt": text}),
        ("/v1/tokenize", {"prompt": "always the same"}),
        ("/v1/detokenize", {"tokens": list(text[:5000].encode())}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "stream": stream}),
        ("/v1/completions", {"prompt": [text[:2000], "b"], "stream": stream, "n": 2}),
        ("/v1/responses", {"input": text, "stream": stream}),
    ]
    path, fields = chooser.choice(choices)
    body = json.dumps({"model": MODEL, **fields}).encode()
    return path, body[: len(body) // 2] if chooser.random() < 0.1 else body


async def one_client(number: int, running: Running, until: float, outcomes: Counter[str]) -> None:
    """Ask again and again; now and then hang up in the middle."""
    chooser = random.Random(number)
    headers = {"content-type": "application/json"}
    async with httpx.AsyncClient(base_url=running.url, timeout=30) as client:
        while time.monotonic() < until:
            path, body = some_request(chooser)
            if chooser.random() < 0.03:
                try:
                    await client.post(path, content=body, headers=headers, timeout=0.002)
                except httpx.TimeoutException:
                    outcomes["hung up"] += 1
                continue
            outcomes[outcome(await client.post(path, content=body, headers=headers))] += 1


def outcome(response: httpx.Response) -> str:
    """How a request was answered; anything that is neither a result nor a proper error fails the test."""
    if response.status_code == 200:
        assert "error" not in response.text[-400:], response.text[-400:]
        return "answered"
    error: dict[str, Any] = response.json()["error"]
    assert sorted(error) == ["code", "message", "param", "type"]
    assert response.status_code in {400, 429, 503}, response.text
    return f"refused: {error['code']}"


@pytest.mark.slow
def test_hammer() -> None:
    """Every request is answered or refused in the API's shape, and nothing is left in work."""
    outcomes: Counter[str] = Counter()

    async def hammer(running: Running) -> None:
        until = time.monotonic() + SECONDS
        await asyncio.gather(*(one_client(number, running, until, outcomes) for number in range(CLIENTS)))

    with serve([FakeWorker("a"), FakeWorker("b")], max_concurrent_requests=32, max_queued_requests=24) as running:
        asyncio.run(hammer(running))
        deadline = time.monotonic() + 5
        while len(running.gateway.in_flight) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(running.gateway.in_flight) == 0
        assert [worker.running for worker in running.workers] == [0, 0]
    assert outcomes["answered"] > 1000, outcomes
    assert outcomes["refused: invalid_json"] > 10, outcomes
    print(outcomes)  # noqa: T201 - shown with -s
