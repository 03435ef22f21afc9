"""The cooking example with the openai and anthropic SDKs against ``foreword serve`` and the small model itself."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from benchmarks.vllm import small_model

from foreword.tokens.chat_template import load_chat_template
from foreword.tokens.loading import load_tokenizer

pytestmark = pytest.mark.slow

MODEL = "smollm2-135m"
BLOCK = 16
GUIDE = """
You help busy people decide what to cook on an ordinary evening.
Keep every idea under half an hour, with things any shop has, and five ideas to a list.
Vegetables first, something filling beside them, nothing that needs a deep fryer.
"""
PREFIX = GUIDE * 22
DINNER, LUNCH = PREFIX + "What should I cook for dinner?", PREFIX + "What should I cook for lunch?"
Respond = Callable[..., tuple[int, int]]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two organisations and an admin."""
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text("org_1 sk-1\norg_12345 sk-12345\nops sk-ops admin\n")
    path.chmod(0o600)
    return path


@contextmanager
def serving(*options: str) -> Iterator[str]:
    """A server with the small model; gives its URL."""
    small_model()  # fetched beforehand, where it is not there
    command = [sys.executable, "-m", "foreword", "serve", "--port", "0", "--log-level", "warning", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            found = re.search(r"at (http://\S+)$", line := process.stdout.readline())
            assert found, line
            yield found[1]
        finally:
            process.kill()


@pytest.fixture(scope="module")
def url(keys: Path) -> Iterator[str]:
    """A server that reports hits as they were."""
    with serving("--api-keys", str(keys)) as found:
        yield found


@pytest.fixture(autouse=True)
def _empty(request: pytest.FixtureRequest) -> None:
    """Nothing is cached when a test begins."""
    if "url" in request.fixturenames:
        reset(request.getfixturevalue("url"))


def reset(url: str) -> None:
    """An admin empties the cache."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="sk-ops", max_retries=0) as client:
        client.post("/prefix_cache/reset", body={}, cast_to=object)


def responder(url: str, key: str = "sk-1") -> Respond:
    """Asks /v1/responses with the openai SDK; gives the prompt's tokens and how many of them were cached."""

    def respond(prompt: str) -> tuple[int, int]:
        with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=120) as client:
            usage = client.responses.create(model=MODEL, input=prompt, max_output_tokens=16).usage
        assert usage is not None
        return usage.input_tokens, usage.input_tokens_details.cached_tokens

    return respond


def complete(url: str, prompt: str) -> int:
    """Asks /v1/completions, where nothing comes before the prompt; gives the cached tokens."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="sk-1", max_retries=0, timeout=120) as client:
        usage = client.completions.create(model=MODEL, prompt=prompt, max_tokens=4).usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    return usage.prompt_tokens_details.cached_tokens or 0


def common_tokens(one: str, other: str) -> int:
    """Tokens in the full blocks that two user messages begin with, as the model gets them."""
    folder = small_model().tokenizer
    assert folder is not None
    tokenizer, template = load_tokenizer(folder), load_chat_template(folder)
    assert template is not None
    texts = [template.render([{"role": "user", "content": text}], add_generation_prompt=True) for text in (one, other)]
    pairs = zip(*map(tokenizer.encode, texts), strict=False)
    return next(position for position, (a, b) in enumerate(pairs) if a != b) // BLOCK * BLOCK


def test_the_second_response_reports_all_full_blocks_of_the_common_prefix(url: str) -> None:
    """Dinner finds nothing, lunch every full block of what it shares with dinner, and more than 1,024 tokens."""
    respond, common = responder(url), common_tokens(DINNER, LUNCH)
    assert common > 1024
    assert [respond(DINNER)[1], respond(LUNCH)[1]] == [0, common]


def test_another_organisation_gets_nothing(url: str) -> None:
    """Its own first request is cold; its second is not."""
    mine, theirs = responder(url), responder(url, "sk-12345")
    assert [mine(DINNER)[1], theirs(LUNCH)[1]] == [0, 0]
    assert theirs(DINNER)[1] == common_tokens(DINNER, LUNCH)


def test_different_openings_share_nothing_of_the_guide(url: str) -> None:
    """The first block of the text differs already; shared is only what the template puts before every chat.

    SmolLM2's puts a system message there, which fills one block.
    """
    supper, lunch = "Supper time! " + DINNER, "Lunch time! " + DINNER
    assert [complete(url, supper), complete(url, lunch)] == [0, 0]
    respond = responder(url)
    assert common_tokens(supper, lunch) == common_tokens("Supper", "Lunch") == BLOCK
    assert [respond(supper)[1], respond(lunch)[1]] == [0, BLOCK]


def test_a_breakpoint_is_created_and_then_read(url: str) -> None:
    """The anthropic SDK sees the guide's tokens written once and read once; the rest is input each time."""

    def ask(question: str) -> Any:
        with anthropic.Anthropic(base_url=url, api_key="sk-1", max_retries=0, timeout=120) as client:
            return client.messages.create(
                model=MODEL,
                max_tokens=8,
                system=[{"type": "text", "text": PREFIX, "cache_control": {"type": "ephemeral"}}],
                messages=[{"role": "user", "content": question}],
            ).usage

    first, second = ask("What should I cook for dinner?"), ask("What should I cook for lunch?")
    written = first.cache_creation_input_tokens
    assert written > 1024
    assert written % BLOCK == 0
    assert first.cache_creation.ephemeral_5m_input_tokens == written
    assert (first.cache_read_input_tokens, second.cache_read_input_tokens) == (0, written)
    assert second.cache_creation_input_tokens == 0
    assert 0 < second.input_tokens < 100


def test_as_a_provider_counts(keys: Path) -> None:
    """With OpenAI's minimum and step: a multiple of 128, and zero where fewer than 1,024 tokens are shared."""
    with serving("--api-keys", str(keys), "--prompt-cache-minimum-tokens", "1024", "--prompt-cache-step", "128") as url:
        respond = responder(url)
        assert [respond(DINNER)[1], respond(LUNCH)[1]] == [0, common_tokens(DINNER, LUNCH) // 128 * 128]
        assert [respond("Supper time! " + DINNER)[1], respond("Lunch time! " + DINNER)[1]] == [0, 0]
        short = GUIDE * 14
        (length, _), (_, cached) = respond("So. " + short + "dinner?"), respond("So. " + short + "lunch?")
        assert (length < 1024, length > 700, cached) == (True, True, 0)
