"""The gateway in front of real vLLM workers, over HTTP, gRPC and ZMQ.

Texts of one prompt computed cold and warm may differ in bfloat16, so only warm ones are compared.
"""

from __future__ import annotations

import json
import random
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.engine

MODEL = "smollm2-135m"
Stand = Any  # conftest.Stand: test modules cannot import it by name

ANSWERS: dict[str, str] = {}
"""What the first transport answered."""

SYSTEM = "You are a careful assistant who answers questions about geography in one short sentence. " * 8
QUESTION = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "What is the capital of France?"}]


def post(stand: Stand, path: str, **body: Any) -> httpx.Response:
    """One request; the test fails unless it is answered."""
    response = httpx.post(stand.url + path, json={"model": MODEL, "temperature": 0, **body}, timeout=120)
    assert response.status_code == 200, response.text
    return response


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The JSON events of a stream."""
    lines = [line for line in response.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_chat_streamed_and_whole_say_the_same(stand: Stand) -> None:
    """Warm, the same text, the same prompt length, and all full blocks of the prompt reported as cached."""
    post(stand, "/v1/chat/completions", messages=QUESTION, max_tokens=12)
    whole = post(stand, "/v1/chat/completions", messages=QUESTION, max_tokens=12).json()
    stream = post(
        stand,
        "/v1/chat/completions",
        messages=QUESTION,
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = events(stream)
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert "Paris" in text
    usage = next(chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage"))
    assert usage["prompt_tokens"] == whole["usage"]["prompt_tokens"]
    full_blocks = (usage["prompt_tokens"] - 1) // 32 * 32
    assert usage["prompt_tokens_details"]["cached_tokens"] == full_blocks
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] == full_blocks


def test_completions_and_responses(stand: Stand) -> None:
    """The other endpoints reach the worker too, and every transport gives the same answer."""
    completion = post(stand, "/v1/completions", prompt="The capital of France is", max_tokens=3).json()
    assert "Paris" in completion["choices"][0]["text"]
    response = post(stand, "/v1/responses", input="What is the capital of France?", max_output_tokens=16).json()
    text = response["output"][-1]["content"][0]["text"]
    assert ANSWERS.setdefault("responses", text) == text


def test_stop_strings(stand: Stand) -> None:
    """The answer ends before the stop string, whoever looks for it."""
    answer = post(stand, "/v1/completions", prompt="1 2 3 4 5 6", max_tokens=40, stop=[" 9"]).json()["choices"][0]
    assert (" 9" in answer["text"], answer["finish_reason"]) == (False, "stop")


def test_a_client_that_leaves_frees_the_engine(stand: Stand) -> None:
    """Soon nothing runs on the worker any more."""
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 3000, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{stand.url}/v1/completions", json=body, timeout=60) as response:
        next(response.iter_raw())
    stand.wait_for(lambda: stand.state()["requests"] == 0, "no request in flight", 10)

    def idle() -> bool:
        worker = stand.state()["worker"]
        return bool(worker["running"] == worker["waiting"] == 0)

    stand.wait_for(idle, "an idle worker", 30)


def test_predicted_cached_tokens_are_the_reported_ones(stand: Stand) -> None:
    """170 requests with shared prefixes for each transport: not one misprediction, and plenty of hits."""
    before = stand.state()
    rng = random.Random(7)
    base = [rng.randrange(1000, 40_000) for _ in range(400)]
    for _ in range(170):
        own = [rng.randrange(1000, 40_000) for _ in range(rng.randrange(1, 60))]
        post(stand, "/v1/completions", prompt=base[: rng.randrange(1, 400)] + own, max_tokens=1)
        stand.wait_for(lambda: stand.state()["requests"] == 0, "an answer on the books", 5)
    after = stand.state()

    def grew(name: str) -> int:
        return int(str(after[name])) - int(str(before[name]))

    assert grew("mispredicted") == 0
    assert grew("predicted_tokens") == grew("reported_tokens") > 10_000


def test_a_killed_worker_comes_back_with_a_clean_index(stand: Stand) -> None:
    """Kill -9 in mid-stream: an error event, then 503, then a new life of which nothing old is believed."""
    prompt = [*range(2000, 2200)]
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 3000, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{stand.url}/v1/completions", json=body, timeout=60) as response:
        text = ""
        for chunk in response.iter_text():
            if not text:
                stand.worker.kill()
            text += chunk
    error = json.loads(text.strip().split("\n\n")[-2].removeprefix("data: "))["error"]
    assert error["code"] in ("worker_error", "worker_unavailable")
    refused = httpx.post(
        f"{stand.url}/v1/completions", json={"model": MODEL, "prompt": prompt, "max_tokens": 1}, timeout=60
    )
    assert refused.status_code == 503
    stand.worker.start()
    stand.wait_healthy()
    before = stand.state()
    usage = post(stand, "/v1/completions", prompt=prompt, max_tokens=1).json()["usage"]
    assert (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0) == 0
    assert stand.state()["predicted_tokens"] == before["predicted_tokens"]
