"""The gateway in front of real vLLM workers, over HTTP, gRPC and ZMQ.

Texts of one prompt computed cold and warm may differ in bfloat16, so only warm ones are compared.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.engine

MODEL = "smollm2-135m"
Stand = Any  # conftest.Stand: test modules cannot import it by name

ANSWERS: dict[str, Any] = {}
"""What the first transport answered."""

SYSTEM = "You are a careful assistant who answers questions about geography in one short sentence. " * 8
QUESTION = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "What is the capital of France?"}]


def post(stand: Stand, path: str, *, organisation: str = "acme", **body: Any) -> httpx.Response:
    """One request; the test fails unless it is answered."""
    sent = {"model": MODEL, "temperature": 0, **body}
    response: httpx.Response = stand.client.post(stand.url + path, json=sent, headers=stand.headers(organisation))
    assert response.status_code == 200, response.text
    return response


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The JSON events of a stream."""
    lines = [line for line in response.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@dataclass(frozen=True)
class Api:
    """How one API is asked, and where its answers keep text, cached tokens, prompt tokens and why they ended."""

    path: str
    body: dict[str, Any]
    limit: str
    stop: str
    text: Callable[[dict[str, Any]], str]
    delta: Callable[[dict[str, Any]], str]
    usage: Callable[[dict[str, Any]], tuple[int, int]]
    stopped: Callable[[dict[str, Any]], Any] | None


def openai_usage(answer: dict[str, Any]) -> tuple[int, int]:
    """Prompt and cached tokens of a chat, a completion, or the last chunk of either."""
    usage = answer["usage"]
    return usage["prompt_tokens"], (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0


def response_usage(answer: dict[str, Any]) -> tuple[int, int]:
    """Prompt and cached tokens of a response, or of the event that ends its stream."""
    usage = answer.get("response", answer)["usage"]
    return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]


def message_usage(answer: dict[str, Any]) -> tuple[int, int]:
    """Prompt and cached tokens of a message: what was read from the cache or written to it is counted apart."""
    usage = answer.get("message", answer)["usage"]
    cached, written = usage.get("cache_read_input_tokens") or 0, usage.get("cache_creation_input_tokens") or 0
    return usage["input_tokens"] + cached + written, cached


APIS = {
    "chat": Api(
        "/v1/chat/completions",
        {"messages": QUESTION, "stream_options": {"include_usage": True}},
        "max_tokens",
        "stop",
        lambda answer: answer["choices"][0]["message"]["content"],
        lambda event: event["choices"][0]["delta"].get("content") or "" if event["choices"] else "",
        openai_usage,
        lambda answer: answer["choices"][0]["finish_reason"],
    ),
    "completions": Api(
        "/v1/completions",
        {"prompt": SYSTEM + "The capital of France is", "stream_options": {"include_usage": True}},
        "max_tokens",
        "stop",
        lambda answer: answer["choices"][0]["text"],
        lambda event: event["choices"][0]["text"] if event["choices"] else "",
        openai_usage,
        lambda answer: answer["choices"][0]["finish_reason"],
    ),
    "responses": Api(
        "/v1/responses",
        {"instructions": SYSTEM, "input": "What is the capital of France?"},
        "max_output_tokens",
        "",
        lambda answer: answer["output"][-1]["content"][0]["text"],
        lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
        response_usage,
        None,
    ),
    "messages": Api(
        "/v1/messages",
        {"system": SYSTEM, "messages": QUESTION[1:]},
        "max_tokens",
        "stop_sequences",
        lambda answer: answer["content"][-1]["text"],
        lambda event: event["delta"].get("text", "") if event["type"] == "content_block_delta" else "",
        message_usage,
        lambda answer: answer["stop_reason"],
    ),
}


def ask(stand: Stand, api: Api, limit: int = 12, **more: Any) -> httpx.Response:
    """One request to an API."""
    body = dict(api.body)
    if not more.get("stream"):
        body.pop("stream_options", None)
    fields: dict[str, Any] = {**body, api.limit: limit, **more}
    return post(stand, api.path, **fields)


def streamed_usage(api: Api, chunks: list[dict[str, Any]]) -> tuple[int, int]:
    """Prompt and cached tokens of a stream: the last that an event tells."""
    for chunk in reversed(chunks):
        with contextlib.suppress(KeyError, TypeError):
            return api.usage(chunk)
    raise AssertionError(chunks)


@pytest.mark.parametrize("name", APIS)
def test_streamed_and_whole_say_the_same_over_every_transport(stand: Stand, name: str) -> None:
    """Warm, one text and one prompt length, whichever transport, and all full blocks of the prompt reported as cached."""
    api = APIS[name]
    ask(stand, api)
    whole = ask(stand, api).json()
    chunks = events(ask(stand, api, stream=True))
    text = api.text(whole)
    assert "Paris" in text
    assert "".join(map(api.delta, chunks)) == text
    prompt_tokens, cached = api.usage(whole)
    assert streamed_usage(api, chunks) == (prompt_tokens, cached)
    assert cached == (prompt_tokens - 1) // 32 * 32
    assert ANSWERS.setdefault(name, (text, prompt_tokens)) == (text, prompt_tokens)


def test_every_transport_sends_the_same_ids(stand: Stand) -> None:
    """The first blocks that the worker stored for the four APIs' prompts, as its own events tell."""
    for api in APIS.values():
        ask(stand, api, limit=1)
    openings = {ids[:32] for ids in stand.stored_ids()}
    assert len(openings) == 2  # a template's, and a plain text's
    assert ANSWERS.setdefault("openings", openings) == openings


@pytest.mark.parametrize("name", [name for name in APIS if APIS[name].stop])
def test_stop_strings(stand: Stand, name: str) -> None:
    """The answer ends before the stop string, whoever looks for it, streamed or not."""
    api = APIS[name]
    assert api.stopped is not None
    stopping: dict[str, Any] = {api.stop: ["Paris"]}
    whole = ask(stand, api, **stopping).json()
    streamed = "".join(map(api.delta, events(ask(stand, api, stream=True, **stopping))))
    assert ("Paris" in api.text(whole) + streamed, api.text(whole)) == (False, streamed)
    assert api.stopped(whole) in ("stop", "stop_sequence")


def test_organisations_share_no_blocks(stand: Stand) -> None:
    """The same prompt: another organisation finds nothing of it, the same one all of it, and so it was foretold."""
    if stand.transport == "grpc":
        refused = stand.client.post(
            f"{stand.url}/v1/completions", json={"model": MODEL, "prompt": "x", "cache_salt": "s"}, timeout=30
        )
        assert (refused.status_code, "cache_salt" in refused.json()["error"]["message"]) == (400, True)
        return
    prompt = [*range(3000, 3100)]
    before = stand.state()
    cached = []
    for organisation, salt in [("acme", {}), ("globex", {}), ("acme", {}), ("globex", {}), ("acme", {"cache_salt": "mine"}),
                               ("globex", {"cache_salt": "mine"}), ("acme", {"cache_salt": "mine"})]:  # fmt: skip
        answer = post(stand, "/v1/completions", organisation=organisation, prompt=prompt, max_tokens=1, **salt)
        cached.append(openai_usage(answer.json())[1])
        stand.settle()
    assert cached == [0, 0, 96, 96, 0, 0, 96]
    assert int(str(stand.state()["mispredicted"])) == int(str(before["mispredicted"]))


def test_a_client_that_leaves_frees_the_engine(stand: Stand) -> None:
    """Soon nothing runs on the worker any more."""
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 3000, "stream": True, "ignore_eos": True}
    with stand.client.stream(
        "POST", f"{stand.url}/v1/completions", json=body, headers=stand.headers(), timeout=60
    ) as response:
        next(response.iter_raw())
    stand.wait_for(lambda: stand.state()["requests"] == 0, "no request in flight", 10)

    def idle() -> bool:
        worker = stand.state()["worker"]
        return bool(worker["running"] == worker["waiting"] == 0)

    stand.wait_for(idle, "an idle worker", 30)


def test_conversations_are_foretold(stand: Stand) -> None:
    """Chat over a transport that takes text is foretold from ids made here, as exactly as over those that take ids."""
    before = stand.state()
    rng, turns = random.Random(3), list(QUESTION)
    for number in range(12):
        turns.append({"role": "assistant", "content": "Paris. " * rng.randrange(1, 20)})
        turns.append({"role": "user", "content": f"And number {number}? " * rng.randrange(1, 9)})
        post(stand, "/v1/chat/completions", messages=turns, max_tokens=1)
        stand.settle()
    after = stand.state()
    assert after["mispredicted"] == before["mispredicted"]
    assert int(str(after["reported_tokens"])) - int(str(before["reported_tokens"])) > 3000


def test_predicted_cached_tokens_are_the_reported_ones(stand: Stand) -> None:
    """170 requests with shared prefixes for each transport: not one misprediction, and plenty of hits."""
    before = stand.state()
    rng = random.Random(7)
    base = [rng.randrange(1000, 40_000) for _ in range(400)]
    for _ in range(170):
        own = [rng.randrange(1000, 40_000) for _ in range(rng.randrange(1, 60))]
        post(stand, "/v1/completions", prompt=base[: rng.randrange(1, 400)] + own, max_tokens=1)
        stand.settle()
    after = stand.state()

    def grew(name: str) -> int:
        return int(str(after[name])) - int(str(before[name]))

    assert grew("mispredicted") == 0
    assert grew("predicted_tokens") == grew("reported_tokens") > 10_000


@pytest.mark.parametrize("stand", ["grpc", "zmq"], indirect=True)  # over HTTP with two workers: test_two_workers.py
def test_a_killed_worker_comes_back_with_a_clean_index(stand: Stand) -> None:
    """Kill -9 in mid-stream: an error event, then 503, then a new life of which nothing old is believed."""
    prompt = [*range(2000, 2200)]
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 3000, "stream": True, "ignore_eos": True}
    with stand.client.stream(
        "POST", f"{stand.url}/v1/completions", json=body, headers=stand.headers(), timeout=60
    ) as response:
        text = ""
        for chunk in response.iter_text():
            if not text:
                stand.worker.kill()
            text += chunk
    error = json.loads(text.strip().split("\n\n")[-2].removeprefix("data: "))["error"]
    assert error["code"] in ("worker_error", "worker_unavailable")
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
    refused = stand.client.post(f"{stand.url}/v1/completions", json=body, headers=stand.headers())
    assert refused.status_code == 503
    stand.worker.start()
    stand.wait_healthy()
    before = stand.state()
    usage = post(stand, "/v1/completions", prompt=prompt, max_tokens=1).json()["usage"]
    assert (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0) == 0
    assert stand.state()["predicted_tokens"] == before["predicted_tokens"]
