"""Every bad input gets a clear answer in the API's own shape, over a real socket, and the server goes on."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest

from foreword.testing.server import MODEL, Running, serve
from foreword.testing.workers import FakeWorker

Json = dict[str, Any]
CHAT = "/v1/chat/completions"
HELLO: Any = [{"role": "user", "content": "Hello"}]


def error_of(response: httpx.Response) -> Json:
    """The error object, whose shape is always the same."""
    body: Json = response.json()
    assert list(body) == ["error"]
    assert sorted(body["error"]) == ["code", "message", "param", "type"]
    assert response.headers["x-request-id"]
    error: Json = body["error"]
    return error


def post(client: httpx.Client, path: str, **fields: Any) -> httpx.Response:
    """Post a request for the model with these fields."""
    return client.post(path, json={"model": MODEL, **fields})


@pytest.mark.parametrize(
    "path,fields",
    [
        (CHAT, {"messages": HELLO}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/tokenize", {"prompt": "a"}),
        ("/v1/detokenize", {"tokens": [1]}),
    ],
)
def test_unknown_model(client: httpx.Client, path: str, fields: Json) -> None:
    """An unknown model is 404 and the message names those there are."""
    response = client.post(path, json={"model": "gpt-none", **fields})
    assert response.status_code == 404
    error = error_of(response)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "'gpt-none'" in error["message"]
    assert f"'{MODEL}'" in error["message"]


@pytest.mark.parametrize(
    "path,body,param",
    [
        (CHAT, {"model": MODEL}, "messages"),
        (CHAT, {"messages": HELLO}, "model"),
        (CHAT, {"model": MODEL, "messages": [{"content": "x"}]}, "messages[0].role"),
        ("/v1/completions", {"model": MODEL}, "prompt"),
        ("/v1/responses", {"model": MODEL}, "input"),
        ("/v1/tokenize", {"model": MODEL}, "prompt"),
        ("/v1/detokenize", {"model": MODEL}, "tokens"),
        ("/v1/tokenizers", {"name": "x"}, "source"),
    ],
)
def test_missing_field(client: httpx.Client, path: str, body: Json, param: str) -> None:
    """A missing field is 400 and named."""
    response = client.post(path, json=body)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


@pytest.mark.parametrize(
    "path,fields,param",
    [
        (CHAT, {"messages": "hi"}, "messages"),
        (CHAT, {"messages": [1]}, "messages[0]"),
        (CHAT, {"messages": HELLO, "temperature": "hot"}, "temperature"),
        (CHAT, {"messages": HELLO, "temperature": -1}, "temperature"),
        (CHAT, {"messages": HELLO, "max_tokens": 0}, "max_tokens"),
        (CHAT, {"messages": HELLO, "top_p": 0}, "top_p"),
        (CHAT, {"messages": HELLO, "n": 0}, "n"),
        (CHAT, {"messages": HELLO, "stop": [""]}, "stop"),
        (CHAT, {"messages": HELLO, "stop": ["x"] * 17}, "stop"),
        (CHAT, {"messages": HELLO, "logit_bias": {"x": 1}}, "logit_bias"),
        (CHAT, {"messages": HELLO, "logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        (CHAT, {"messages": HELLO, "functions": []}, "functions"),
        (CHAT, {"messages": HELLO, "audio": 0}, "audio"),
        (CHAT, {"messages": HELLO, "response_format": {}}, "response_format"),
        (CHAT, {"messages": HELLO, "response_format": {"type": 1}}, "response_format"),
        (CHAT, {"messages": HELLO, "top_logprobs": 2}, "top_logprobs"),
        (CHAT, {"messages": HELLO, "stream_options": {"include_usage": True}}, "stream_options"),
        (CHAT, {"messages": []}, "messages"),
        ("/v1/completions", {"prompt": 3}, "prompt"),
        ("/v1/completions", {"prompt": []}, "prompt"),
        ("/v1/completions", {"prompt": [1, "a"]}, "prompt"),
        ("/v1/completions", {"prompt": [5000]}, "prompt"),
        ("/v1/completions", {"prompt": [[]]}, "prompt"),
        ("/v1/responses", {"input": []}, "input"),
        ("/v1/responses", {"input": [{"type": "computer_call"}]}, "input[0]"),
        ("/v1/responses", {"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ("/v1/responses", {"input": [{"type": "function_call_output", "call_id": "x"}]}, "input[0].output"),
        ("/v1/responses", {"input": "a", "text": {"format": "json"}}, "text.format"),
        ("/v1/responses", {"input": "a", "text": {"format": {}}}, "text.format"),
        ("/v1/responses", {"input": "a", "prompt": 0}, "prompt"),
        ("/v1/tokenize", {"prompt": None}, "prompt"),
        ("/v1/tokenize", {"prompt": ["a", 1]}, "prompt[1]"),
        ("/v1/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/v1/detokenize", {"tokens": ["a"]}, "tokens[0]"),
    ],
)
def test_wrong_field(client: httpx.Client, path: str, fields: Json, param: str) -> None:
    """A field of the wrong type or out of range is 400 and named."""
    response = post(client, path, **fields)
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == param


@pytest.mark.parametrize(
    "path,fields,param",
    [
        (CHAT, {"messages": HELLO, "response_format": {"type": "json_object"}}, "response_format"),
        (CHAT, {"messages": HELLO, "functions": [{"name": "f"}]}, "functions"),
        (CHAT, {"messages": HELLO, "audio": {"voice": "x"}}, "audio"),
        (CHAT, {"messages": HELLO, "modalities": ["text", "audio"]}, "modalities"),
        (CHAT, {"messages": HELLO, "tool_choice": "required"}, "tool_choice"),
        ("/v1/completions", {"prompt": "a", "echo": True}, "echo"),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
        ("/v1/completions", {"prompt": "a", "best_of": 3}, "best_of"),
        ("/v1/responses", {"input": "a", "previous_response_id": "resp_1"}, "previous_response_id"),
        ("/v1/responses", {"input": "a", "background": True}, "background"),
        ("/v1/responses", {"input": "a", "tools": [{"type": "web_search"}]}, "tools[0]"),
        ("/v1/responses", {"input": "a", "text": {"format": {"type": "json_schema"}}}, "text.format"),
    ],
)
def test_unsupported(client: httpx.Client, path: str, fields: Json, param: str) -> None:
    """What is known and not offered is 400, says so and names the field."""
    response = post(client, path, **fields)
    assert response.status_code == 400
    error = error_of(response)
    assert (error["param"], error["code"]) == (param, "unsupported_value")
    assert "support" in error["message"] or "deprecated" in error["message"] or "not " in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"model": "m", "prompt": "a"} trailing',
        b'{"model": "m", "prompt": "\\ud800"}',
        b'{"model": "m", "prompt": "\\udc00 alone"}',
        b'{"model": "m", "prompt": "\xed\xa0\x80"}',
        b'{"model": "m", "prompt": "\xff"}',
        b'{"model": "m", "prompt": NaN}',
        b'{"model": "m", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model": "m", "extra": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b', "prompt": "a"}',
    ],
    ids=lambda body: body[:24].decode("latin-1"),
)
def test_invalid_json(client: httpx.Client, body: bytes) -> None:
    """What is no JSON, holds half a surrogate pair, or nests absurdly deep, is 400."""
    response = client.post("/v1/tokenize", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert error_of(response)["code"] in {"invalid_json", "invalid_value"}


def test_lone_surrogate_is_explained(client: httpx.Client) -> None:
    """The message says what about the escape is wrong."""
    body = b'{"model": "m", "prompt": "\\ud800"}'
    response = client.post("/v1/tokenize", content=body, headers={"content-type": "application/json"})
    assert "half of a pair" in error_of(response)["message"]


@pytest.mark.parametrize("body", [b"[]", b"1", b'"x"', b"null"])
def test_body_that_is_no_object(client: httpx.Client, body: bytes) -> None:
    """JSON of another kind than an object is 400."""
    response = client.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert "Expected object" in error_of(response)["message"]


def test_wrong_content_type(client: httpx.Client) -> None:
    """Another content type is 415 and the message says what to send; curl without a header sends a form's."""
    response = client.post(CHAT, content=b"{}", headers={"content-type": "application/x-www-form-urlencoded"})
    assert response.status_code == 415
    assert "application/json" in error_of(response)["message"]


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/x+json"])
def test_right_content_types(client: httpx.Client, content_type: str) -> None:
    """Parameters, case and structured suffixes do not matter."""
    body = json.dumps({"model": MODEL, "prompt": "a"}).encode()
    response = client.post("/v1/tokenize", content=body, headers={"content-type": content_type})
    assert response.json() == {"tokens": [97], "count": 1, "char_count": 1}


@pytest.mark.parametrize("framing", ["content-length", "chunked"])
def test_body_over_the_limit_is_refused_before_it_is_read(framing: str) -> None:
    """413 comes while most of the body is still unsent."""
    with serve(max_body_bytes=2048) as running, socket.create_connection(("127.0.0.1", running.port), 5) as raw:
        head = b"POST /v1/tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        if framing == "chunked":
            raw.sendall(head + b"transfer-encoding: chunked\r\n\r\n1000\r\n" + b"x" * 4096 + b"\r\n")
        else:
            raw.sendall(head + b"content-length: 1000000000000\r\n\r\n{")
        answer = raw.recv(65536)
        assert answer.startswith(b"HTTP/1.1 413 ")
        raw.settimeout(5)
        while chunk := raw.recv(65536):
            answer += chunk
        assert b"body_too_large" in answer
        assert b"2048" in answer


def test_context_overflow_names_both_numbers() -> None:
    """A prompt over the context is 400 with the prompt's tokens and the model's."""
    with serve([FakeWorker(max_model_len=64)]) as running, httpx.Client(base_url=running.url) as client:
        response = post(client, "/v1/completions", prompt="x" * 100)
        assert response.status_code == 400
        error = error_of(response)
        assert error["code"] == "context_length_exceeded"
        assert "64" in error["message"]
        assert "101" in error["message"]  # with <s>
        response = post(client, "/v1/completions", prompt="x" * 50, max_tokens=20)
        assert response.status_code == 400
        assert "20" in error_of(response)["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_worker_down(*, stream: bool) -> None:
    """With no worker to take it the request is 503 with Retry-After, streamed or not."""
    worker = FakeWorker()
    with serve([worker]) as running, httpx.Client(base_url=running.url) as client:
        worker.down = True
        response = post(client, CHAT, messages=HELLO, stream=stream)
        assert response.status_code == 503
        assert response.headers["retry-after"] == "2"
        assert error_of(response)["code"] == "worker_unavailable"
        assert client.get("/readiness").status_code == 503
        assert client.get("/liveness").status_code == 200


def test_another_worker_is_tried() -> None:
    """When one of two workers is down the other answers."""
    down, up = FakeWorker("down"), FakeWorker("up", answer=b"yes")
    down.down = True
    with serve([down, up]) as running, httpx.Client(base_url=running.url) as client:
        answers = [post(client, CHAT, messages=HELLO).json() for _ in range(4)]
        assert [answer["choices"][0]["message"]["content"] for answer in answers] == ["yes"] * 4


def test_role_the_template_refuses(client: httpx.Client) -> None:
    """The template's own words come back as 400."""
    response = post(client, CHAT, messages=[{"role": "martian", "content": "bleep"}])
    assert response.status_code == 400
    error = error_of(response)
    assert (error["param"], error["code"]) == ("messages", "template_error")


def test_role_the_template_drops(client: httpx.Client) -> None:
    """A role that the template leaves out without a word is 400 and named."""
    response = post(client, CHAT, messages=[{"role": "whisper", "content": "psst"}, *HELLO])
    assert response.status_code == 400
    assert error_of(response)["param"] == "messages[0].role"


@pytest.mark.parametrize("kind", ["image_url", "input_image", "input_audio", "file", "martian", None, 7])
def test_content_part_that_is_no_text(client: httpx.Client, kind: object) -> None:
    """Images and other parts are 400 and the part is named."""
    content = [{"type": "text", "text": "What is this?"}, {"type": kind, "image_url": {"url": "http://x/y.png"}}]
    response = post(client, CHAT, messages=[{"role": "user", "content": content}])
    assert response.status_code == 400
    error = error_of(response)
    assert (error["param"], error["code"]) == ("messages[0].content[1]", "unsupported_content")


def test_too_many_answers(client: httpx.Client) -> None:
    """More answers than one request may have is 400."""
    response = post(client, CHAT, messages=HELLO, n=129)
    assert response.status_code == 400
    assert error_of(response)["param"] == "n"


def test_limits_on_counts() -> None:
    """Messages, tools and prompts are bounded by configuration."""
    tool = {"type": "function", "function": {"name": "f"}}
    with (
        serve(max_messages=2, max_tools=1, max_prompts=2) as running,
        httpx.Client(base_url=running.url) as client,
    ):
        for path, fields in (
            (CHAT, {"messages": HELLO * 3}),
            (CHAT, {"messages": HELLO, "tools": [tool, tool]}),
            ("/v1/completions", {"prompt": ["a", "b", "c"]}),
            ("/v1/tokenize", {"prompt": ["a", "b", "c"]}),
        ):
            response = post(client, path, **fields)
            assert response.status_code == 400, (path, fields)
            assert error_of(response)["message"]


def test_unknown_path_and_method(client: httpx.Client) -> None:
    """404 and 405 have the API's shape too, and 405 says what is allowed."""
    assert error_of(client.get("/v1/nothing"))["code"] == "not_found"
    response = client.get(CHAT)
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert error_of(response)["code"] == "method_not_allowed"


def test_unknown_fields_are_ignored(client: httpx.Client) -> None:
    """As by every other server: SDKs send fields of their own."""
    assert post(client, CHAT, messages=HELLO, some_vendor_field={"x": 1}).status_code == 200


def test_server_still_answers(shared: Running, client: httpx.Client) -> None:
    """After all that nothing is left in work."""
    assert client.get("/readiness").json() == {"status": "ready", "models": [MODEL]}
    assert len(shared.gateway.in_flight) == 0
    assert shared.worker.running == 0


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "template", "documents"])
def test_reserved_template_variables(client: httpx.Client, name: str) -> None:
    """What the request itself says cannot be said again to the template."""
    response = post(client, CHAT, messages=HELLO, chat_template_kwargs={name: 1})
    assert (response.status_code, error_of(response)["param"]) == (400, "chat_template_kwargs")


def test_a_template_variable_called_self(client: httpx.Client) -> None:
    """Other names are the template's, those of Python's parameters among them."""
    assert post(client, CHAT, messages=HELLO, chat_template_kwargs={"self": 1}).status_code == 200


def test_a_dropped_role_whose_words_are_elsewhere(client: httpx.Client) -> None:
    """A message the template leaves out is noticed though another one says the same."""
    messages = [*HELLO, {"role": "whisper", "content": "Hello"}]
    response = post(client, CHAT, messages=messages)
    assert (response.status_code, error_of(response)["param"]) == (400, "messages[1].role")
