"""The request that is shown to newcomers works as it stands."""

from __future__ import annotations

import html
import json

import httpx
import pytest

from foreword.gateway.pages import example_body
from foreword.testing.server import MODEL, load_bytes, serve
from foreword.testing.workers import FakeWorker


@pytest.mark.parametrize("room", [5, 64, 1000])
def test_the_example_fits_the_context(room: int) -> None:
    """It asks for 64 tokens, or for as many as there is room for, and for the same answer each time."""
    loaded = load_bytes("here", MODEL)
    assert loaded.template is not None
    path, body = example_body(loaded, 0)
    prompt = loaded.template.render(body["messages"], add_generation_prompt=True)
    prompt_tokens = len(loaded.tokenizer.encode(prompt))

    _, body = example_body(loaded, prompt_tokens + 1 + room)
    assert (path, body["max_tokens"], body["temperature"]) == ("/v1/chat/completions", min(room, 64), 0)


def test_the_page_s_example_is_answered() -> None:
    """What the page says to paste is a request that is answered."""
    with serve([FakeWorker(answer=b"Paris")]) as running, httpx.Client(base_url=running.url) as client:
        page = html.unescape(client.get("/").text)
        body = json.loads(page.partition("-d '")[2].partition("'</pre>")[0])
        answer = client.post("/v1/chat/completions", json=body)
    assert body["temperature"] == 0
    assert answer.status_code == 200, answer.text
