"""Whatever a body holds, the answer is a result or an error in the API's shape, and never a fault of the server."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foreword.testing.server import MODEL, Running

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
KINDS = st.sampled_from(["text", "input_text", "output_text", "refusal", "image_url", "function", "message"])
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", "whisper", "martian", ""])
PART = st.fixed_dictionaries({"type": KINDS | JSON}, optional={"text": JSON, "refusal": JSON})
CALL = st.fixed_dictionaries(
    {}, optional={"id": JSON, "type": KINDS, "function": st.fixed_dictionaries({"name": st.text(), "arguments": JSON})}
)
MESSAGE = st.fixed_dictionaries(
    {"role": ROLES | JSON},
    optional={
        "content": st.text() | st.lists(PART, max_size=3) | JSON,
        "tool_calls": st.lists(CALL, max_size=2) | JSON,
        "tool_call_id": st.text() | JSON,
        "name": JSON,
        "reasoning_content": JSON,
    },
)
TOOL = st.fixed_dictionaries(
    {"type": st.just("function") | KINDS},
    optional={"function": st.fixed_dictionaries({"name": st.text()}, optional={"parameters": JSON}), "name": st.text()},
)
ITEM = MESSAGE | st.fixed_dictionaries(
    {"type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "item_reference"])},
    optional={"role": ROLES, "content": JSON, "name": JSON, "arguments": JSON, "call_id": JSON, "output": JSON},
)
MARK = st.fixed_dictionaries(
    {"type": st.just("ephemeral") | JSON}, optional={"ttl": st.sampled_from(["5m", "1h"]) | JSON}
)
BLOCKS = ["text", "image", "thinking", "redacted_thinking", "tool_use", "tool_result", "hologram"]
BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(BLOCKS), "text": st.text()},
    optional={
        "cache_control": MARK,
        "thinking": st.text(),
        "id": st.text(),
        "name": st.text(),
        "input": st.dictionaries(st.text(), JSON, max_size=2) | JSON,
        "tool_use_id": st.text(),
        "content": st.text()
        | st.lists(st.fixed_dictionaries({"type": st.sampled_from(BLOCKS), "text": st.text()}))
        | JSON,
    },
)
TURN = st.fixed_dictionaries({
    "role": st.sampled_from(["user", "user", "assistant", "system", "robot"]),
    "content": st.text() | st.lists(BLOCK, max_size=3) | JSON,
})  # fmt: skip
NUMBER = st.integers(-3, 300) | st.floats(allow_nan=False) | JSON
SAMPLING = dict.fromkeys(("temperature", "top_p", "top_k", "min_p", "seed", "min_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "stop_token_ids", "ignore_eos", "cache_salt", "user"), NUMBER)  # fmt: skip
ANSWER = {
    "max_tokens": NUMBER,
    "n": st.integers(-1, 4) | JSON,
    "stop": st.text() | st.lists(st.text(), max_size=5) | JSON,
    "stream": st.booleans() | JSON,
    "stream_options": st.fixed_dictionaries({}, optional={"include_usage": st.booleans() | JSON}) | JSON,
    "logprobs": st.booleans() | st.integers(0, 30) | JSON,
    "response_format": st.fixed_dictionaries({"type": KINDS | JSON}) | JSON,
}
BODIES = {
    "/v1/chat/completions": (
        {"messages": st.lists(MESSAGE, max_size=4) | JSON},
        {
            **SAMPLING,
            **ANSWER,
            "tools": st.lists(TOOL, max_size=3) | JSON,
            "tool_choice": st.sampled_from(["auto", "none", "required"]) | JSON,
            "chat_template_kwargs": st.dictionaries(st.text(max_size=5), JSON, max_size=3) | JSON,
            "top_logprobs": st.integers(-1, 25) | JSON,
            "modalities": JSON,
            "reasoning_effort": JSON,
        },
    ),
    "/v1/completions": (
        {"prompt": st.text() | st.lists(st.text() | st.integers(-1, 300), max_size=4) | JSON},
        {**SAMPLING, **ANSWER, "echo": JSON, "suffix": JSON, "best_of": JSON},
    ),
    "/v1/responses": (
        {"input": st.text() | st.lists(ITEM, max_size=4) | JSON},
        {
            **SAMPLING,
            "stream": st.booleans() | JSON,
            "instructions": st.text() | JSON,
            "tools": st.lists(TOOL, max_size=3) | JSON,
            "text": st.fixed_dictionaries({"format": JSON}) | JSON,
            "reasoning": st.fixed_dictionaries({"effort": JSON}) | JSON,
            "metadata": JSON,
        },
    ),
    "/v1/messages": (
        {"messages": st.lists(TURN, max_size=4) | JSON, "max_tokens": st.integers(1, 300) | JSON},
        {
            **SAMPLING,
            "stream": st.booleans() | JSON,
            "stop_sequences": st.lists(st.text(), max_size=5) | JSON,
            "system": st.text() | st.lists(BLOCK, max_size=3) | JSON,
            "tools": st.lists(
                st.fixed_dictionaries(
                    {"name": st.text()}, optional={"input_schema": JSON, "cache_control": MARK, "type": JSON}
                ),
                max_size=3,
            ),
            "tool_choice": st.fixed_dictionaries({"type": st.sampled_from(["auto", "none", "any"]) | JSON}) | JSON,
            "thinking": st.fixed_dictionaries({"type": st.sampled_from(["enabled", "disabled"]) | JSON}) | JSON,
            "cache_control": MARK | JSON,
            "output_config": JSON,
        },
    ),
    "/v1/prefix_cache/reset": ({}, {"organisation": st.text() | JSON, "cache_salt": st.text() | JSON}),
    "/v1/tokenize": ({"prompt": st.text() | st.lists(st.text()) | JSON}, {"add_special_tokens": st.booleans() | JSON}),
    "/v1/detokenize": (
        {"tokens": st.lists(st.integers(0, 300)) | JSON},
        {"skip_special_tokens": st.booleans() | JSON},
    ),
}


@pytest.fixture(scope="module")
def fuzzed(shared: Running) -> Any:
    """One kept-alive client for all examples."""
    with httpx.Client(base_url=shared.url, timeout=20) as client:
        yield client


def check(response: httpx.Response) -> None:
    """A result, or an error in the API's shape that is the client's own fault."""
    if response.status_code == 200:
        return
    assert 400 <= response.status_code < 500, response.text
    body = response.json()
    error = body["error"]
    assert error["message"]
    if response.url.path == "/v1/messages":
        assert (sorted(body), sorted(error)) == (["error", "request_id", "type"], ["message", "type"])
        return
    assert sorted(error) == ["code", "message", "param", "type"]
    assert error["code"]


@pytest.mark.parametrize("path", BODIES)
def test_bodies_near_the_schema(path: str, fuzzed: httpx.Client) -> None:
    """Bodies with the right names and any values under them."""
    required, optional = BODIES[path]
    model = st.just(MODEL) | st.just(MODEL) | JSON

    @settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.fixed_dictionaries({"model": model, **required}, optional=optional))
    def run(body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        check(fuzzed.post(path, content=content, headers={"content-type": "application/json"}))

    run()


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(path=st.sampled_from(list(BODIES)), body=st.binary(max_size=200) | JSON.map(lambda v: json.dumps(v).encode()))
def test_any_bytes(path: str, body: bytes, fuzzed: httpx.Client) -> None:
    """Bodies that are anything at all."""
    check(fuzzed.post(path, content=body, headers={"content-type": "application/json"}))


def test_nothing_is_left_behind(shared: Running) -> None:
    """After all of it nothing is in work, at the gateway or at the worker."""
    assert len(shared.gateway.in_flight) == 0
    assert shared.worker.running == 0
