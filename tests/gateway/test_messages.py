"""/v1/messages, mostly through the anthropic SDK, whose types check the shape."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from foreword.testing.server import MODEL, Running, serve
from foreword.testing.workers import FakeWorker

Json = dict[str, Any]
HELLO: Any = [{"role": "user", "content": "Hello"}]
RULES = "Keep every idea under half an hour. " * 40
MARKED = [{"type": "text", "text": RULES, "cache_control": {"type": "ephemeral"}}]
RULES_END = (len("\x00system\n") + len(RULES) + len("\x00\n\x00user\n")) // 16 * 16
"""Tokens of the full blocks before what can differ behind the mark: a user's text. A byte is a token here, as is a marker."""
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'


@pytest.fixture
def running() -> Iterator[Running]:
    """A server with an empty cache."""
    with serve([FakeWorker(answer=b"Paris, of course.", stop_token_id=258)]) as found:
        yield found


def sdk_of(running: Running, key: str = "none") -> Any:
    """The SDK against a server."""
    return anthropic.Anthropic(base_url=running.url, api_key=key, max_retries=0)


def create(running: Running, **fields: Any) -> Any:
    """A message."""
    return sdk_of(running).messages.create(**{"model": MODEL, "max_tokens": 100, "messages": HELLO, **fields})


def prompt_of(running: Running) -> str:
    """The text of the last prompt that the worker got."""
    loaded = running.gateway.tokenizers.find(MODEL)
    return loaded.tokenizer.decode(running.worker.requests[-1].token_ids, skip_special_tokens=False)


def counts(usage: Any) -> tuple[int, int, int, int]:
    """Read, written for five minutes, written for an hour, neither; the parts and the sum of the written agree."""
    creation = usage.cache_creation
    five, hour = creation.ephemeral_5m_input_tokens, creation.ephemeral_1h_input_tokens
    assert usage.cache_creation_input_tokens == five + hour
    return usage.cache_read_input_tokens, five, hour, usage.input_tokens


def test_answer(running: Running) -> None:
    """The SDK reads text, stop reason and usage."""
    message = create(running, system="Be brief.")
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
    assert [block.text for block in message.content] == ["Paris, of course."]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert prompt_of(running) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert message.usage.input_tokens == len(running.worker.requests[-1].token_ids)
    assert message.usage.output_tokens == 18


def test_a_breakpoint_is_written_then_read(running: Running) -> None:
    """The first request writes the blocks up to the breakpoint, the second reads them, whatever its question."""
    first = create(running, system=MARKED)
    total = len(running.worker.requests[-1].token_ids)
    assert counts(first.usage) == (0, RULES_END, 0, total - RULES_END)
    second = create(running, system=MARKED, messages=[{"role": "user", "content": "Lunch?"}])
    total = len(running.worker.requests[-1].token_ids)
    assert counts(second.usage) == (RULES_END, 0, 0, total - RULES_END)
    assert [point.num_tokens for point in running.worker.requests[-1].breakpoints] == [RULES_END]


def test_without_breakpoints_hits_are_read_and_nothing_is_written(running: Running) -> None:
    """The cache works unasked, and the usage says what it spared."""
    first, second = create(running, system=RULES), create(running, system=RULES)
    total = len(running.worker.requests[-1].token_ids)
    cached = (total - 1) // 16 * 16
    assert counts(first.usage) == (0, 0, 0, total)
    assert counts(second.usage) == (cached, 0, 0, total - cached)


def test_two_lives(running: Running) -> None:
    """An hour for the rules and five minutes for the conversation are counted apart, and kept apart."""
    system = [{**MARKED[0], "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    turn = [{"type": "text", "text": "A long story. " * 20, "cache_control": {"type": "ephemeral", "ttl": "5m"}}]
    usage = create(running, system=system, messages=[{"role": "user", "content": turn}]).usage
    total = len(running.worker.requests[-1].token_ids)
    end = (len("\x00system\n") + len(RULES) + len("\x00\n\x00user\n") + 280 + len("\x00\n")) // 16 * 16
    assert counts(usage) == (0, end - RULES_END, RULES_END, total - end)
    assert [point.seconds for point in running.worker.requests[-1].breakpoints] == [3600, 300]


def test_an_hour_outlives_what_is_merely_idle() -> None:
    """A breakpoint's life is kept although other prefixes are forgotten after ten minutes without use."""
    now = [1000.0]
    with serve([FakeWorker(answer=b"Soup.", clock=lambda: now[0])]) as running:
        hour = [{**MARKED[0], "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
        create(running, system=hour)
        create(running, system="Another. " * 40)
        now[0] += 3599
        assert create(running, system=hour).usage.cache_read_input_tokens == RULES_END
        assert create(running, system="Another. " * 40).usage.cache_read_input_tokens == 0
        now[0] += 3601
        assert counts(create(running, system=hour).usage)[:3] == (0, 0, RULES_END)


def test_organisations_and_keys(tmp_path: Path) -> None:
    """Keys are taken as x-api-key and as a bearer's; another organisation reads nothing."""
    path = tmp_path / "keys"
    path.write_text("acme sk-acme\nother sk-other\n")
    path.chmod(0o600)
    with serve(api_keys=path) as running:
        ask = {"model": MODEL, "max_tokens": 9, "messages": HELLO, "system": MARKED}
        bearer = anthropic.Anthropic(base_url=running.url, auth_token="sk-acme", max_retries=0)
        read = [
            client.messages.create(**ask).usage.cache_read_input_tokens
            for client in (sdk_of(running, "sk-acme"), bearer, sdk_of(running, "sk-other"))
        ]
        assert read == [0, RULES_END, 0]
        with pytest.raises(anthropic.AuthenticationError) as caught:
            sdk_of(running, "sk-wrong").messages.create(**ask)
        body: Any = caught.value.body
        assert (body["type"], body["error"]["type"]) == ("error", "authentication_error")


def test_provider_emulation() -> None:
    """Under the minimum a breakpoint neither writes nor reads."""
    with serve(prompt_cache_minimum_tokens=2048, prompt_cache_step=128) as running:
        usages = [create(running, system=MARKED).usage for _ in range(2)]
        total = len(running.worker.requests[-1].token_ids)
        assert [counts(usage) for usage in usages] == [(0, 0, 0, total)] * 2


def test_stream_events(running: Running) -> None:
    """The events in order; the first has the input's counts, the last but one those of the output."""
    events = list(create(running, system=MARKED, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert "".join(event.delta.text for event in events[2:-3]) == "Paris, of course."
    begun = events[0].message
    assert (begun.content, begun.stop_reason) == ([], None)
    total = len(running.worker.requests[-1].token_ids)
    assert counts(begun.usage) == (0, RULES_END, 0, total - RULES_END)
    assert (events[-2].delta.stop_reason, events[-2].usage.output_tokens) == ("end_turn", 18)
    assert events[-2].usage.cache_creation_input_tokens == RULES_END


def test_stream_helper_assembles_the_message(running: Running) -> None:
    """The SDK's own accumulator accepts the events and ends with the same message as without streaming."""
    create(running, system=MARKED)
    with sdk_of(running).messages.stream(model=MODEL, max_tokens=100, messages=HELLO, system=MARKED) as stream:
        assert "".join(stream.text_stream) == "Paris, of course."
        final = stream.get_final_message()
    whole = create(running, system=MARKED)
    assert final.content[0].text == whole.content[0].text
    assert counts(final.usage) == counts(whole.usage)
    assert final.usage.cache_read_input_tokens == RULES_END


@pytest.mark.parametrize("streamed", [False, True])
def test_tool_call_and_its_result(*, streamed: bool) -> None:
    """A call is a block of its own after the text; call and result go back as blocks."""
    with serve([FakeWorker(answer=f"Let me see.{CALL}".encode(), stop_token_id=258)]) as running:
        fields: Any = {"model": MODEL, "max_tokens": 200, "messages": HELLO, "tools": [WEATHER]}
        if streamed:
            with sdk_of(running).messages.stream(**fields) as stream:
                message = stream.get_final_message()
        else:
            message = create(running, **fields)
        assert message.stop_reason == "tool_use"
        assert [block.type for block in message.content] == ["text", "tool_use"]
        call = message.content[1]
        assert (call.name, call.input, call.id[:6]) == ("get_weather", {"city": "Paris"}, "toolu_")
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]}
        turns = [*HELLO, message.to_param(), {"role": "user", "content": [result, {"type": "text", "text": "So?"}]}]
        create(running, **{**fields, "messages": turns})
        assert f"Let me see.{CALL}" in prompt_of(running)
        assert "<|im_start|>tool\nsunny<|im_end|>\n<|im_start|>user\nSo?<|im_end|>" in prompt_of(running)
        assert '"description": "The weather of a city."' in prompt_of(running)


def test_tool_choice_none_hides_the_tools(running: Running) -> None:
    """The tools are not shown, so none can be called."""
    create(running, tools=[WEATHER], tool_choice={"type": "none"})
    assert "get_weather" not in prompt_of(running)


def test_thinking() -> None:
    """Reasoning is asked for through the template, and comes as a block of its own, whole and streamed."""
    with serve([FakeWorker(answer=b"Hm.</think>Soup.", stop_token_id=258)]) as running:
        fields: Any = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}
        message = create(running, **fields)
        assert prompt_of(running).endswith("<think>")
        assert [(block.type, getattr(block, block.type)) for block in message.content] == [
            ("thinking", "Hm."),
            ("text", "Soup."),
        ]
        with sdk_of(running).messages.stream(model=MODEL, messages=HELLO, **fields) as stream:
            streamed = stream.get_final_message()
        assert [block.type for block in streamed.content] == ["thinking", "text"]
        assert (streamed.content[0].thinking, streamed.content[1].text) == ("Hm.", "Soup.")
        create(running, messages=[*HELLO, message.to_param(), *HELLO])
        assert "<|im_start|>assistant\nSoup.<|im_end|>" in prompt_of(running)
        assert not prompt_of(running).endswith("<think>")


@pytest.mark.parametrize(
    "fields,reason,sequence",
    [
        ({"max_tokens": 5}, "max_tokens", None),
        ({"stop_sequences": [", of"]}, "stop_sequence", ", of"),
        ({"stop_sequences": ["never"]}, "end_turn", None),
    ],
)
def test_stop_reasons(running: Running, fields: Json, reason: str, sequence: str | None) -> None:
    """Why the answer ended, and by which of the request's sequences."""
    message = create(running, **fields)
    assert (message.stop_reason, message.stop_sequence) == (reason, sequence)
    assert message.content[0].text == ("Paris, of course." if reason == "end_turn" else "Paris")


def test_count_tokens(running: Running) -> None:
    """The count is that of the prompt a message would have; nothing is generated."""
    fields: Any = {"model": MODEL, "messages": HELLO, "system": MARKED, "tools": [WEATHER]}
    counted = sdk_of(running).messages.count_tokens(**fields).input_tokens
    assert running.worker.requests == []
    create(running, **fields)
    assert counted == len(running.worker.requests[-1].token_ids)


def post(running: Running, body: Any, path: str = "/v1/messages", **options: Any) -> httpx.Response:
    """A raw request."""
    return httpx.post(running.url + path, json=body, **options)


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
PREFILL = [*HELLO, {"role": "assistant", "content": "The"}]
FIVE_MARKS = [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}] * 5


@pytest.mark.parametrize(
    "fields,words",
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "text only"),
        ({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, "hologram"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}]}, "tool_use"),
        ({"messages": PREFILL}, "assistant"),
        ({"system": FIVE_MARKS}, "limit of 4"),
        ({"system": [{**FIVE_MARKS[0], "cache_control": {"type": "ephemeral", "ttl": "2h"}}]}, "2h"),
        ({"system": [{**FIVE_MARKS[0], "cache_control": {"type": "eternal"}}]}, "eternal"),
        ({"thinking": {"type": "between_tools"}}, "between_tools"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"tool_choice": {"type": "any"}}, "forced"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "schema"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"stop_sequences": [""]}, "empty string"),
        ({"max_tokens": 10**6}, "context"),
    ],
)
def test_refusals(running: Running, fields: Json, words: str) -> None:
    """What is wrong or not offered is refused in Anthropic's shape, in words that name it; nothing reaches the worker."""
    response = post(running, {"model": MODEL, "max_tokens": 9, "messages": HELLO, **fields})
    body = response.json()
    assert (response.status_code, body["type"], body["error"]["type"]) == (400, "error", "invalid_request_error")
    assert words in body["error"]["message"]
    assert body["request_id"] == response.headers["x-request-id"]
    assert running.worker.requests == []


def test_errors_before_the_endpoint_have_the_shape_too(running: Running) -> None:
    """So do invalid JSON, unknown models, wrong methods and content types; other routes keep theirs."""
    ask = {"model": "gpt-9", "max_tokens": 9, "messages": HELLO}
    text = {"content-type": "text/plain"}
    found = [
        httpx.post(f"{running.url}/v1/messages", content=b"{"),
        post(running, ask),
        post(running, ask, "/v1/messages/count_tokens"),
        httpx.get(f"{running.url}/v1/messages"),
        httpx.post(f"{running.url}/v1/messages", content=b"{}", headers=text),
    ]
    kinds = [(response.status_code, response.json()["error"]["type"]) for response in found]
    assert kinds == [
        (400, "invalid_request_error"),
        (404, "not_found_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (415, "invalid_request_error"),
    ]
    assert [response.json()["type"] for response in found] == ["error"] * 5
    assert "code" in post(running, ask, "/v1/chat/completions").json()["error"]


def test_worker_that_is_down_or_breaks() -> None:
    """Down is an overloaded error that may be tried again; a broken stream ends in an error event that the SDK raises."""
    worker = FakeWorker(answer=b"Paris, of course.")
    with serve([worker]) as running:
        worker.down = True
        with pytest.raises(anthropic.APIStatusError) as caught:
            create(running)
        body: Any = caught.value.body
        assert (caught.value.status_code, body["error"]["type"]) == (503, "overloaded_error")
        assert caught.value.response.headers["retry-after"] == "2"
    worker = FakeWorker(answer=b"Paris, of course.")
    worker.break_after = 3
    with serve([worker]) as running, pytest.raises(anthropic.APIStatusError, match="broke"):
        list(create(running, stream=True))


def test_metrics(running: Running) -> None:
    """The worker's hits are counted as they were, and requests by their route."""
    for _ in range(2):
        create(running, system=MARKED)
    metrics = httpx.get(f"{running.url}/metrics").text
    total = len(running.worker.requests[-1].token_ids)
    assert f'foreword_prefix_cache_hits_total{{worker="fake"}} {float((total - 1) // 16 * 16)}' in metrics
    assert 'foreword_requests_total{route="/v1/messages",status="200"} 2.0' in metrics
