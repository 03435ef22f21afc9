"""/v1/completions."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from foreword.testing.server import MODEL, Running

Json = dict[str, Any]


def complete(running: Running, **fields: Any) -> Json:
    """The body of an answer."""
    response = httpx.post(f"{running.url}/v1/completions", json={"model": MODEL, **fields})
    assert response.status_code == 200, response.text
    body: Json = response.json()
    return body


@pytest.mark.parametrize(
    "prompt,prompts",
    [
        ("ab", [[256, 97, 98]]),
        (["ab", "c"], [[256, 97, 98], [256, 99]]),
        ([97, 98], [[97, 98]]),
        ([[97], [98, 99]], [[97], [98, 99]]),
    ],
    ids=["text", "texts", "ids", "lists of ids"],
)
def test_forms_of_prompt(shared: Running, prompt: object, prompts: list[Any]) -> None:
    """A text, texts, ids and lists of ids; texts get the tokenizer's special tokens, ids are taken as they are."""
    answer = complete(shared, prompt=prompt)
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(prompts)))
    taken = sorted((list(request.token_ids) for request in shared.worker.requests[-len(prompts) :]), key=str)
    assert taken == sorted(prompts, key=str)
    assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts))


def test_default_limit_is_openais(shared: Running) -> None:
    """Without max_tokens an answer has 16 tokens."""
    choice = complete(shared, prompt="a")["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Paris, of course", "length")


def test_stream_of_several_prompts(shared: Running) -> None:
    """Chunks of several prompts carry their index, and usage comes last."""
    client = openai.OpenAI(base_url=f"{shared.url}/v1", api_key="none")
    chunks = list(
        client.completions.create(
            model=MODEL, prompt=["a", "b"], stream=True, max_tokens=17, stream_options={"include_usage": True}
        )
    )
    for index in (0, 1):
        texts = [choice.text for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert "".join(texts) == "Paris, of course."
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 34


def test_logprobs(shared: Running) -> None:
    """Tokens, their log probabilities, the likeliest others and offsets into the text."""
    logprobs = complete(shared, prompt="a", logprobs=1, max_tokens=2)["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["P", "a"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"P": -0.5}, {"a": -0.5}],
        "text_offset": [0, 1],
    }


def test_streamed_offsets_go_on(shared: Running) -> None:
    """Offsets in a stream count from the start of the answer."""
    body = {"model": MODEL, "prompt": "a", "logprobs": 0, "max_tokens": 3, "stream": True}
    text = httpx.post(f"{shared.url}/v1/completions", json=body).text
    chunks = [json.loads(event[6:]) for event in text.split("\n\n")[:-2]]
    offsets = [offset for chunk in chunks for offset in chunk["choices"][0]["logprobs"]["text_offset"]]
    assert offsets == [0, 1, 2]
