"""/v1/chat/completions, whole and streamed, through the openai SDK and as bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from foreword.testing.server import MODEL, Running, serve
from foreword.testing.workers import FakeWorker

Json = dict[str, Any]
HELLO: Any = [{"role": "user", "content": "Hello"}]
WEATHER: Any = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.fixture
def sdk(shared: Running) -> Iterator[Any]:
    """The SDK against the shared server."""
    with openai.OpenAI(base_url=f"{shared.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def answering(text: str, **options: Any) -> FakeWorker:
    """A worker whose answers are this text."""
    return FakeWorker(answer=text.encode(), stop_token_id=258, **options)


def ask(running: Running, **fields: Any) -> Json:
    """The body of an answer."""
    body = {"model": MODEL, "messages": HELLO, **fields}
    response = httpx.post(f"{running.url}/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def stream(running: Running, **fields: Any) -> list[Json]:
    """The chunks of a streamed answer, which ends in [DONE]."""
    body = {"model": MODEL, "messages": HELLO, "stream": True, **fields}
    response = httpx.post(f"{running.url}/v1/chat/completions", json=body)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def joined(chunks: list[Json], key: str = "content", index: int = 0) -> str:
    """One field of one choice's deltas put together."""
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get(key) or "" for choice in choices)


def test_answer(sdk: Any) -> None:
    """The SDK reads text, finish reason and usage."""
    answer = sdk.chat.completions.create(model=MODEL, messages=HELLO)
    assert answer.choices[0].message.content == "Paris, of course."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (24, 17)


def test_prompt_is_the_rendered_template(shared: Running) -> None:
    """The worker gets the ids of the template's text, without special tokens added."""
    ask(shared, messages=[{"role": "system", "content": "Be brief."}, *HELLO])
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    loaded = shared.gateway.tokenizers.find(MODEL)
    assert shared.worker.requests[-1].token_ids == loaded.tokenizer.encode(text)


def test_second_request_reports_cached_tokens(sdk: Any) -> None:
    """What the worker's prefix cache held is in the usage."""
    messages = [{"role": "user", "content": "a long question " * 20}]
    first = sdk.chat.completions.create(model=MODEL, messages=messages)
    second = sdk.chat.completions.create(model=MODEL, messages=messages)
    counts = [answer.usage.prompt_tokens_details.cached_tokens for answer in (first, second)]
    assert counts[1] == 336
    assert counts[0] < 32


def test_stream(sdk: Any) -> None:
    """A stream is the same text in pieces, then usage when it was asked for."""
    chunks = list(
        sdk.chat.completions.create(model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True})
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Paris, of course."
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 17
    assert chunks[0].usage is None


def test_characters_are_never_split() -> None:
    """A character of several tokens comes whole, in one piece."""
    with serve([answering("naïve 日本 🎉")]) as running:
        chunks = stream(running)
        assert joined(chunks) == "naïve 日本 🎉"
        assert all("\ufffd" not in joined([chunk]) for chunk in chunks)


def test_stop_string(shared: Running) -> None:
    """The answer ends before a stop string, the worker is told to stop, and no piece of it leaks into a stream."""
    answer = ask(shared, stop=[", of"])
    choice = answer["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == ("Paris", "stop", ", of")
    assert joined(stream(shared, stop=[", of"])) == "Paris"
    assert joined(stream(shared, stop=[", of"], include_stop_str_in_output=True)) == "Paris, of"
    assert shared.worker.aborted
    assert answer["usage"]["completion_tokens"] == 9


def test_max_tokens(shared: Running) -> None:
    """An answer cut short says so, by either name of the limit."""
    for field in ("max_tokens", "max_completion_tokens"):
        choice = ask(shared, **{field: 5})["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Paris", "length")


def test_several_answers(shared: Running) -> None:
    """Asking for n > 1 gives so many choices; the prompt counts once."""
    answer = ask(shared, n=3, seed=7)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["prompt_tokens"] == 24
    assert answer["usage"]["completion_tokens"] == 51
    assert [request.sampling.seed for request in shared.worker.requests[-3:]] == [7, 8, 9]
    chunks = stream(shared, n=2)
    assert [joined(chunks, index=index) for index in (0, 1)] == ["Paris, of course."] * 2


def test_logprobs(shared: Running) -> None:
    """Each token's log probability and the likeliest others, whole and streamed."""
    rows = ask(shared, logprobs=True, top_logprobs=2, max_tokens=2)["choices"][0]["logprobs"]["content"]
    assert [row["token"] for row in rows] == ["P", "a"]
    assert rows[0]["bytes"] == [80]
    assert [other["token"] for other in rows[0]["top_logprobs"]] == ["P", "Q"]
    chunks = stream(shared, logprobs=True, top_logprobs=0, max_tokens=2)
    streamed = [row for c in chunks for ch in c["choices"] if ch["logprobs"] for row in ch["logprobs"]["content"]]
    assert [(row["token"], row["top_logprobs"]) for row in streamed] == [("P", []), ("a", [])]


def test_sampling_parameters_reach_the_worker(shared: Running) -> None:
    """Every parameter is passed on under the worker's names."""
    ask(
        shared, temperature=0, top_p=0.5, top_k=7, min_p=0.1, seed=3, presence_penalty=1, frequency_penalty=-1,
        repetition_penalty=1.5, logit_bias={"5": -100}, min_tokens=2, ignore_eos=True, stop_token_ids=[9],
        cache_salt="pepper",
    )  # fmt: skip
    request = shared.worker.requests[-1]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0, 0.5, 7, 0.1)
    assert (sampling.seed, sampling.presence_penalty, sampling.frequency_penalty) == (3, 1, -1)
    assert (sampling.repetition_penalty, dict(sampling.logit_bias)) == (1.5, {5: -100})
    assert (sampling.min_tokens, sampling.ignore_eos, sampling.stop_token_ids) == (2, True, (9,))
    assert request.cache_salt == "pepper"


def test_text_parts_are_joined(shared: Running) -> None:
    """Content in text parts is the same prompt as the text in one piece."""
    ask(shared, messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])
    ask(shared, messages=[{"role": "user", "content": "a\nb"}])
    assert shared.worker.requests[-1].token_ids == shared.worker.requests[-2].token_ids


@pytest.mark.parametrize("streamed", [False, True])
def test_tool_call(*, streamed: bool) -> None:
    """A call in the answer comes as tool_calls, its text does not, and content before it does."""
    text = 'Let me see.<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    with serve([answering(text)]) as running:
        if streamed:
            chunks = stream(running, tools=[WEATHER])
            assert joined(chunks) == "Let me see."
            last = chunks[-1]["choices"][0]
            call, finish = last["delta"]["tool_calls"][0], last["finish_reason"]
            assert call["index"] == 0
        else:
            choice = ask(running, tools=[WEATHER])["choices"][0]
            assert choice["message"]["content"] == "Let me see."
            call, finish = choice["message"]["tool_calls"][0], choice["finish_reason"]
        assert finish == "tool_calls"
        assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}
        assert call["id"].startswith("call_")


def test_tool_choice_none(shared: Running) -> None:
    """With tool_choice "none" the tools are not shown to the model."""
    ask(shared, tools=[WEATHER], tool_choice="none")
    loaded = shared.gateway.tokenizers.find(MODEL)
    assert "get_weather" not in loaded.tokenizer.decode(shared.worker.requests[-1].token_ids)


def test_tool_turns_reach_the_template(shared: Running) -> None:
    """An assistant's call and the tool's answer are rendered, the arguments as an object."""
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    ask(
        shared,
        tools=[WEATHER],
        messages=[
            *HELLO,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        ],
    )
    loaded = shared.gateway.tokenizers.find(MODEL)
    prompt = loaded.tokenizer.decode(shared.worker.requests[-1].token_ids, skip_special_tokens=False)
    assert '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>' in prompt
    assert "<|im_start|>tool\nsunny<|im_end|>" in prompt


@pytest.mark.parametrize("opened", [False, True])
def test_reasoning(*, opened: bool) -> None:
    """Thoughts come as reasoning_content, whether the prompt or the answer opens them."""
    text = "They ask for a capital.\n</think>\n\nParis."
    options = {"chat_template_kwargs": {"enable_thinking": True}} if opened else {}
    with serve([answering(text if opened else "<think>\n" + text)]) as running:
        answer = ask(running, **options)
        message = answer["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("They ask for a capital.", "Paris.")
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] > 20
        chunks = stream(running, **options)
        assert joined(chunks, "reasoning_content") == "They ask for a capital."
        assert joined(chunks) == "Paris."


def test_reserved_template_variable(shared: Running) -> None:
    """Variables that are the request's own are refused, by name."""
    body = {"model": MODEL, "messages": HELLO, "chat_template_kwargs": {"messages": []}}
    response = httpx.post(f"{shared.url}/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "chat_template_kwargs")


@pytest.mark.parametrize("after", [0, 5])
def test_worker_that_breaks(after: int) -> None:
    """A break before the first token is an error response; later a stream ends in an error event and [DONE]."""
    worker = answering("Paris, of course.")
    worker.break_after = after
    with serve([worker]) as running:
        body = {"model": MODEL, "messages": HELLO, "stream": True}
        response = httpx.post(f"{running.url}/v1/chat/completions", json=body)
        if after == 0:
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "worker_unavailable"
            return
        events = response.text.split("\n\n")
        assert events[-2] == "data: [DONE]"
        error = json.loads(events[-3].removeprefix("data: "))["error"]
        assert (error["type"], error["code"]) == ("server_error", "worker_error")
        assert httpx.post(f"{running.url}/v1/chat/completions", json={**body, "stream": False}).status_code == 502


def test_sdk_raises_on_an_error_event() -> None:
    """The SDK turns the error event into an exception."""
    worker = answering("Paris, of course.")
    worker.break_after = 3
    with serve([worker]) as running:
        client: Any = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.APIError, match="broke"):
            list(client.chat.completions.create(model=MODEL, messages=HELLO, stream=True))


@pytest.mark.parametrize("streamed", [False, True])
def test_timeout(*, streamed: bool) -> None:
    """A request over its time is ended: 504, or an error event, and the worker's request is aborted."""
    worker = answering("Paris, of course.")
    worker.hang_after = 3
    with serve([worker], request_timeout=0.3) as running:
        body = {"model": MODEL, "messages": HELLO, "stream": streamed}
        response = httpx.post(f"{running.url}/v1/chat/completions", json=body)
        assert "timeout" in response.text
        assert response.status_code == (200 if streamed else 504)
        assert len(worker.aborted) == 1
        assert worker.running == 0


def test_context_left_is_the_default_limit() -> None:
    """Without max_tokens the answer may fill the context."""
    with serve([answering("x" * 100, max_model_len=40)]) as running:
        assert ask(running)["usage"]["total_tokens"] == 40
