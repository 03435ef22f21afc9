"""/v1/responses, mostly through the openai SDK, whose types check the shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from foreword.testing.server import MODEL, Running, serve
from foreword.testing.workers import FakeWorker

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'


@pytest.fixture
def sdk(shared: Running) -> Iterator[Any]:
    """The SDK against the shared server."""
    with openai.OpenAI(base_url=f"{shared.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def sdk_of(running: Running) -> Any:
    """The SDK against a server."""
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)


def prompt_of(running: Running) -> str:
    """The text of the last prompt that the worker got."""
    loaded = running.gateway.tokenizers.find(MODEL)
    return loaded.tokenizer.decode(running.worker.requests[-1].token_ids, skip_special_tokens=False)


def test_prompt_caching_example(sdk: Any) -> None:
    """Two calls with one long prefix: the second reports nearly all input tokens as cached."""
    prefix = "You are a useful cooking assistant. Prefer simple home cooking.\n" * 80
    first = sdk.responses.create(model=MODEL, input=prefix + "What should I cook for dinner?")
    second = sdk.responses.create(model=MODEL, input=prefix + "What should I cook for lunch?")
    assert second.output_text == "Paris, of course."
    assert first.usage is not None
    assert second.usage is not None
    assert first.usage.input_tokens_details.cached_tokens <= 16
    assert second.usage.input_tokens_details.cached_tokens >= len(prefix)
    assert second.usage.input_tokens - second.usage.input_tokens_details.cached_tokens < 64


def test_instructions_and_items(shared: Running, sdk: Any) -> None:
    """Instructions come first as the system message; earlier turns come as items."""
    sdk.responses.create(
        model=MODEL,
        instructions="Be brief.",
        input=[
            {"role": "user", "content": "Hi"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]},
            {"role": "user", "content": [{"type": "input_text", "text": "Bye"}]},
        ],
    )
    assert prompt_of(shared) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )


def test_output_can_be_sent_back(shared: Running, sdk: Any) -> None:
    """The output's items are input items of the next turn."""
    first = sdk.responses.create(model=MODEL, input="Hi")
    turns = [{"role": "user", "content": "Hi"}, *first.output, {"role": "user", "content": "Again"}]
    sdk.responses.create(model=MODEL, input=turns)
    assert "<|im_start|>assistant\nParis, of course.<|im_end|>" in prompt_of(shared)


def test_tool_call_and_its_output() -> None:
    """A call is an item of its own; the call and its output go back as items."""
    with serve([FakeWorker(answer=CALL.encode(), stop_token_id=258)]) as running:
        client = sdk_of(running)
        first = client.responses.create(model=MODEL, input="Weather?", tools=[WEATHER])
        call = first.output[0]
        assert call.type == "function_call"
        assert (call.name, call.arguments) == ("get_weather", '{"city": "Paris"}')
        client.responses.create(
            model=MODEL,
            tools=[WEATHER],
            input=[
                {"role": "user", "content": "Weather?"},
                call,
                {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
            ],
        )
        assert CALL.replace('"arguments": {', '"arguments": {') in prompt_of(running)
        assert "<|im_start|>tool\nsunny<|im_end|>" in prompt_of(running)


def test_incomplete() -> None:
    """An answer cut short is incomplete and says why."""
    with serve() as running:
        response = sdk_of(running).responses.create(model=MODEL, input="Hi", max_output_tokens=5)
        assert response.status == "incomplete"
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.output_text == "Paris"


def test_stream_events(sdk: Any) -> None:
    """The events, in order, numbered from zero; the last holds the whole response."""
    events = list(sdk.responses.create(model=MODEL, input="Hi", stream=True))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events[4:-4]) == "Paris, of course."
    final = events[-1].response
    assert final.output_text == "Paris, of course."
    assert final.usage.output_tokens == 17


def test_stream_helper_assembles_the_response(sdk: Any) -> None:
    """The SDK's own accumulator accepts the events."""
    with sdk.responses.stream(model=MODEL, input="Hi") as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == "Paris, of course."


def test_stream_of_reasoning_and_call() -> None:
    """Reasoning, message and call are items of their own, each opened and closed."""
    text = "<think>Hm.</think>Let me see." + CALL
    with serve([FakeWorker(answer=text.encode(), stop_token_id=258)]) as running:
        events = list(sdk_of(running).responses.create(model=MODEL, input="Hi", tools=[WEATHER], stream=True))
        added = [event.item.type for event in events if event.type == "response.output_item.added"]
        done = [event.item.type for event in events if event.type == "response.output_item.done"]
        assert added == done == ["reasoning", "message", "function_call"]
        assert [item.type for item in events[-1].response.output] == added
        arguments = [event.arguments for event in events if event.type == "response.function_call_arguments.done"]
        assert arguments == ['{"city": "Paris"}']


def test_stream_that_breaks() -> None:
    """It ends in an error event and a failed response."""
    worker = FakeWorker(answer=b"Paris")
    worker.break_after = 2
    with serve([worker]) as running:
        events = list(sdk_of(running).responses.create(model=MODEL, input="Hi", stream=True))
        assert [event.type for event in events[-2:]] == ["error", "response.failed"]
        assert events[-2].message == "fake broke."
        assert events[-1].response.status == "failed"
