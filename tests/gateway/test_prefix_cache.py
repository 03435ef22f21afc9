"""/v1/prefix_cache: what the caches hold, emptying them, and who may."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from foreword.testing.server import MODEL, Running, serve
from foreword.testing.workers import FakeWorker

Json = dict[str, Any]
PROMPT = "Prefer simple home cooking. " * 8  # 225 tokens: one a byte, and <s> in front


class Plain:
    """A worker that shows nothing of its cache: FakeWorker behind the bare protocol."""

    def __init__(self, worker: FakeWorker) -> None:
        self.name, self.model, self.max_model_len = "plain", worker.model, worker.max_model_len
        self.start, self.stop = worker.start, worker.stop
        self.generate, self.check_health, self.statistics = worker.generate, worker.check_health, worker.statistics


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A server with two organisations and an admin."""
    path = tmp_path / "keys"
    path.write_text("acme sk-acme\nother sk-other\nops sk-ops admin\n")
    path.chmod(0o600)
    with serve(api_keys=path) as found:
        yield found


def call(running: Running, method: str, path: str, key: str = "sk-ops", **options: Any) -> httpx.Response:
    """A request with a key."""
    return httpx.request(method, running.url + path, headers={"x-api-key": key}, **options)


def complete(running: Running, key: str, prompt: str = PROMPT, **fields: Any) -> int:
    """Ask for a completion; the cached tokens it reports."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 1, **fields}
    answer = call(running, "POST", "/v1/completions", key, json=body).json()
    cached: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


def show(running: Running, query: str = "") -> Json:
    """What the one worker's cache holds."""
    (worker,) = call(running, "GET", f"/v1/prefix_cache{query}").json()["workers"]
    found: Json = worker
    return found


def test_empty_cache(running: Running) -> None:
    """Before the first request there is nothing to divide by, and it says so."""
    worker = show(running)
    assert (worker["worker"], worker["model"], worker["block_size"]) == ("fake", MODEL, 16)
    assert (worker["usage"], worker["hit_rate"], worker["hottest"]) == (0, None, [])


def test_numbers_and_hottest_prefixes(running: Running) -> None:
    """Usage, hit rate, evictions, and prefixes as the text they begin with, each with its owner."""
    for key, times in (("sk-acme", 3), ("sk-other", 2)):
        for _ in range(times):
            complete(running, key)
    complete(running, "sk-acme", PROMPT[::-1], cache_salt="hush")
    worker = show(running)
    assert (worker["requests"], worker["queries"], worker["hits"]) == (6, 6 * 225, 3 * 224)
    assert worker["hit_rate"] == round(3 * 224 / (6 * 225), 4)
    assert worker["stored"] - worker["evicted"] == worker["held"] == 3 * 14
    assert worker["usage"] == round(42 / worker["num_blocks"], 4)
    assert worker["hottest"] == [
        {"text": "<s>" + PROMPT[:127], "tokens": 224, "hits": 2, "organisation": "acme", "salted": False},
        {"text": "<s>" + PROMPT[:127], "tokens": 224, "hits": 1, "organisation": "other", "salted": False},
        {"text": "<s>" + PROMPT[::-1][:127], "tokens": 224, "hits": 0, "organisation": "acme", "salted": True},
    ]


def test_limit(running: Running) -> None:
    """The number of prefixes can be chosen; what is no number is refused."""
    complete(running, "sk-acme")
    assert len(show(running, "?limit=1")["hottest"]) == 1
    assert show(running, "?limit=0")["hottest"] == []
    for wrong in ("-1", "x", "1001", "9" * 5000):
        response = call(running, "GET", f"/v1/prefix_cache?limit={wrong}")
        assert (response.status_code, response.json()["error"]["param"]) == (400, "limit")


@pytest.mark.parametrize(
    "body,blocks,cached_after",
    [
        ({}, 42, [0, 0, 0]),
        (None, 42, [0, 0, 0]),
        ({"organisation": "acme"}, 28, [0, 0, 224]),
        ({"cache_salt": "s"}, 14, [224, 0, 224]),
        ({"organisation": "acme", "cache_salt": "s"}, 14, [224, 0, 224]),
        ({"organisation": "other", "cache_salt": "s"}, 0, [224, 224, 224]),
        ({"organisation": "acm"}, 0, [224, 224, 224]),
    ],
)
def test_reset(running: Running, body: Json | None, blocks: int, cached_after: list[int]) -> None:
    """Everything, an organisation, a salt, or both: the answer says of how much, and the others keep theirs."""
    asked: list[tuple[str, Json]] = [("sk-acme", {}), ("sk-acme", {"cache_salt": "s"}), ("sk-other", {})]
    assert [complete(running, key, **fields) for key, fields in asked] == [0, 0, 0]
    response = (
        call(running, "POST", "/v1/prefix_cache/reset", json=body)
        if body is not None
        else call(running, "POST", "/v1/prefix_cache/reset")
    )
    tokens = blocks * 16
    assert response.json() == {
        "blocks": blocks,
        "tokens": tokens,
        "disk_blocks": 0,
        "workers": [{"worker": "fake", "blocks": blocks, "tokens": tokens, "disk_blocks": 0}],
        "not_resettable": [],
    }
    assert [complete(running, key, **fields) for key, fields in asked] == cached_after
    running.worker.prefix_cache.check_integrity()


@pytest.mark.parametrize("body", [{"organization": "acme"}, {"organisation": ""}, {"cache_salt": 1}, [], "all"])
def test_reset_of_something_misspelt_empties_nothing(running: Running, body: Any) -> None:
    """An unknown field or a wrong value is refused, since it would empty more than was meant."""
    complete(running, "sk-acme")
    response = call(running, "POST", "/v1/prefix_cache/reset", json=body)
    assert response.status_code == 400
    assert complete(running, "sk-acme") == 224


def test_only_admins(running: Running) -> None:
    """Neither looking nor emptying is for an ordinary key."""
    for method, path in (("GET", "/v1/prefix_cache"), ("POST", "/v1/prefix_cache/reset")):
        assert call(running, method, path, "sk-acme").status_code == 403
        assert httpx.request(method, running.url + path).status_code == 401


def test_workers_that_show_nothing() -> None:
    """They are named, and left as they are."""
    workers: Any = [Plain(FakeWorker())]
    with serve(workers) as running:
        assert httpx.get(f"{running.url}/v1/prefix_cache").json() == {"workers": [], "not_inspectable": ["plain"]}
        answer = httpx.post(f"{running.url}/v1/prefix_cache/reset", json={}).json()
        assert (answer["blocks"], answer["not_resettable"]) == (0, ["plain"])
