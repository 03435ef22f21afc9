"""Two real workers of one model: requests follow their prefix, and when one is killed the other takes over."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.engine

MODEL = "smollm2-135m"
Pair = Any  # conftest.Pair: test modules cannot import it by name


def complete(pair: Pair, prompt: list[int], **more: Any) -> dict[str, Any]:
    """One answered completion."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 1, "temperature": 0, **more}
    response = pair.client.post(f"{pair.url}/v1/completions", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def served(pair: Pair) -> dict[str, int]:
    """Requests that each worker has answered."""
    return {name: int(str(row["served"])) for name, row in pair.states().items()}


def test_requests_follow_their_prefix(pair: Pair) -> None:
    """Two prefixes settle on a worker each: after the first of each, all full blocks are cached, as foretold."""
    for number in range(10):
        for base in (range(2000, 2200), range(5000, 5200)):
            answer = complete(pair, [*base, 100 + number])
            pair.settle()
            cached = (answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0
            assert cached == (192 if number else 0)
    assert sorted(served(pair).values()) == [10, 10]
    assert [row["mispredicted"] for row in pair.states().values()] == [0, 0]


def worker_of(pair: Pair, start: int) -> str:
    """The worker that answers prompts of that prefix: the one whose count a request makes grow."""
    before = served(pair)
    complete(pair, [*range(start, start + 200), 3])
    pair.wait_for(lambda: served(pair) != before, "an answer on the books", 5)
    return next(name for name, count in served(pair).items() if count > before[name])


def test_a_killed_workers_requests_finish_elsewhere(pair: Pair) -> None:
    """Kill -9 in mid-stream: that client gets an error event, a stream beside it and all new requests do not notice."""
    victim, survivor = worker_of(pair, 2000), worker_of(pair, 5000)
    assert victim != survivor
    body = {"model": MODEL, "stream": True, "ignore_eos": True, "temperature": 0}

    def stream(start: int, max_tokens: int) -> Any:
        sent = {**body, "prompt": [*range(start, start + 200)], "max_tokens": max_tokens}
        return pair.client.stream("POST", f"{pair.url}/v1/completions", json=sent)

    with stream(2000, 3000) as doomed, stream(5000, 120) as other:
        first, second = doomed.iter_text(), other.iter_text()
        broken, whole = next(first), next(second)
        pair.workers[victim].kill()
        broken += "".join(first)
        for number in range(3):
            complete(pair, [*range(2000, 2200), number])
        whole += "".join(second)
    error = json.loads(broken.strip().split("\n\n")[-2].removeprefix("data: "))["error"]
    assert error["code"] in ("worker_error", "worker_unavailable")
    assert ("error" in whole, whole.strip().endswith("data: [DONE]")) == (False, True)
    assert pair.states()[victim]["state"] == "unhealthy"
    pair.workers[victim].start()
    pair.wait_healthy()
    came_back = served(pair)[victim]
    for number in range(6):
        pair.settle()
        complete(pair, [*range(9000 + 300 * number, 9200 + 300 * number)])
    assert served(pair)[victim] > came_back
    assert [row["mispredicted"] for row in pair.states().values()] == [0, 0]
