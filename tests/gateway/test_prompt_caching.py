"""Prompt caching as applications see it, through the openai SDK against a live gateway: the cooking example and its kin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from foreword.core.extra_keys import frame_salt
from foreword.gateway.generate import CacheReporting
from foreword.testing.server import MODEL, Running, serve
from foreword.testing.workers import FakeWorker

GUIDE = """
You help busy people decide what to cook on an ordinary evening.
Keep every idea under half an hour, with things any shop has, and five ideas to a list.
Vegetables first, something filling beside them, nothing that needs a deep fryer.
"""
PREFIX = GUIDE * 12
DINNER, LUNCH = PREFIX + "What should I cook for dinner?", PREFIX + "What should I cook for lunch?"
FRAME = len("\x00user\n")
"""Tokens in front of the user's text: the ChatML marker is one."""
COMMON = (FRAME + len(PREFIX) + len("What should I cook for ")) // 16 * 16
"""Tokens in the full blocks of the prefix that both prompts share; a byte is a token here."""


class Clock:
    """A time that moves when told."""

    now = 1000.0

    def __call__(self) -> float:
        """The time."""
        return self.now


Json = dict[str, Any]
Respond = Callable[..., int]


def responder(running: Running, key: str = "none") -> Respond:
    """Asks /v1/responses with the SDK; returns the cached tokens that the usage reports."""
    client: Any = openai.OpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0)

    def respond(prompt: str, **fields: Any) -> int:
        usage = client.responses.create(model=MODEL, input=prompt, **fields).usage
        cached: int = usage.input_tokens_details.cached_tokens
        assert 0 <= cached < usage.input_tokens
        return cached

    return respond


@pytest.fixture
def running() -> Iterator[Running]:
    """A server with an empty cache."""
    with serve() as found:
        yield found


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Two organisations whose names and salts could be confused when glued together, and an admin."""
    path = tmp_path / "keys"
    path.write_text("org_1 sk-1\norg_12345 sk-12345\nops sk-ops admin\n")
    path.chmod(0o600)
    return path


def test_second_response_reports_the_common_full_blocks(running: Running) -> None:
    """The cooking example: nothing at first, then every full block of what both prompts begin with."""
    respond = responder(running)
    assert [respond(DINNER), respond(LUNCH)] == [0, COMMON]


@pytest.mark.parametrize("openings", [("Supper time!", "Lunch time!"), ("Today is Monday.", "It is Monday.")])
def test_different_openings_share_nothing(running: Running, openings: tuple[str, str]) -> None:
    """Where the first words differ nothing is cached, however alike the rest is."""
    respond = responder(running)
    assert [respond(f"{opening} {DINNER}") for opening in openings] == [0, 0]


def test_provider_emulation() -> None:
    """With OpenAI's minimum and step the count is a multiple of 128, and none under 1,024; the log keeps the truth."""
    with serve(prompt_cache_minimum_tokens=1024, prompt_cache_step=128) as running:
        respond = responder(running)
        assert [respond(DINNER), respond(LUNCH)] == [0, COMMON // 128 * 128]
        short = PREFIX[:1000]
        assert [respond(short + " one"), respond(short + " two")] == [0, 0]
        metrics = httpx.get(f"{running.url}/metrics").text
        hits = next(line for line in metrics.splitlines() if line.startswith("foreword_prefix_cache_hits_total"))
        assert float(hits.split()[-1]) > COMMON + 992


@pytest.mark.parametrize(
    "minimum,step,tokens,reported",
    [
        (0, 0, 177, 177),
        (1024, 128, 1023, 0),
        (1024, 128, 1024, 1024),
        (1024, 128, 1151, 1024),
        (1024, 128, 19_999, 19_968),
        (1024, 128, 19_840, 19_840),
        (1000, 128, 1010, 0),
        (0, 128, 200, 128),
        (512, 0, 511, 0),
    ],
)
def test_reporting(minimum: int, step: int, tokens: int, reported: int) -> None:
    """Rounded down to a step first, then held against the minimum."""
    assert CacheReporting(minimum, step).reported(tokens) == reported


def test_organisations_share_nothing(keys: Path) -> None:
    """Another organisation's prompts are no hits, nor do organisation and salt run into each other."""
    with serve(api_keys=keys) as running:
        one, other = responder(running, "sk-1"), responder(running, "sk-12345")
        assert [one(DINNER), one(LUNCH), other(LUNCH), other(DINNER)] == [0, COMMON, 0, COMMON]
        salted = {"extra_body": {"cache_salt": "2345"}}
        assert [one(LUNCH, **salted), one(DINNER, **salted)] == [0, COMMON]


def test_a_salt_without_organisation_is_nobodys_else(keys: Path) -> None:
    """What an organisation's salt becomes can be sent by nobody as a salt of their own."""
    forged = frame_salt("org_1", None)
    assert forged is not None
    worker = FakeWorker(answer=b"Soup.")
    with serve([worker], api_keys=keys) as running:
        assert responder(running, "sk-1")(DINNER) == 0
    with serve([worker]) as running:
        respond = responder(running)
        assert respond(DINNER, extra_body={"cache_salt": forged}) == 0
        assert respond(DINNER) == 0
    salts = {frame_salt(org, salt) for org in ("org_1", "org_12345", None) for salt in (None, "2345", "org:5:org_1:")}
    assert len(salts) == 9


def test_salts_share_nothing(running: Running) -> None:
    """Requests find only what was cached under their own salt."""
    respond = responder(running)
    salts: tuple[Json, ...] = ({}, {"extra_body": {"cache_salt": "a"}}, {"extra_body": {"cache_salt": "b"}})
    assert [respond(DINNER, **salt) for salt in salts] == [0, 0, 0]
    assert [respond(LUNCH, **salt) for salt in salts] == [COMMON] * 3


def test_in_memory_life() -> None:
    """A hit keeps a prefix for ten more minutes, but nothing lives longer than an hour."""
    clock = Clock()
    with serve([FakeWorker(answer=b"Soup.", clock=clock)]) as running:
        respond = responder(running)

        def cached_after(seconds: float) -> int:
            clock.now += seconds
            return respond(DINNER)

        again = cached_after(0) or respond(DINNER)
        assert again >= COMMON
        assert [cached_after(599) for _ in range(6)] == [again] * 6
        assert [cached_after(7), cached_after(599), cached_after(601)] == [0, again, 0]


def test_retention_of_a_day() -> None:
    """A day's retention outlives the life in memory, which is the default; another is refused by name."""
    clock = Clock()
    worker = FakeWorker(answer=b"Soup.", clock=clock)
    with serve([worker]) as running:
        respond = responder(running)
        respond(DINNER, prompt_cache_retention="24h")
        respond("Supper time! " + DINNER, prompt_cache_retention="in_memory")
        assert [request.retention for request in worker.requests] == ["24h", "in_memory"]
        clock.now += 20 * 3600
        assert [respond(LUNCH), respond("Supper time! " + LUNCH)] == [COMMON, 0]
        with pytest.raises(openai.BadRequestError, match="'1w'") as caught:
            respond(DINNER, prompt_cache_retention="1w")
        assert (caught.value.param, caught.value.code) == ("prompt_cache_retention", "unsupported_value")


def test_chat_and_completions_report_too(running: Running) -> None:
    """Chat and completions report cached tokens whole and streamed, each where its API has them."""
    client: Any = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
    usage = {"include_usage": True}
    ask: Json = {"model": MODEL, "messages": [{"role": "user", "content": DINNER}], "prompt_cache_key": "cooks"}
    whole = client.chat.completions.create(**ask).usage
    streamed = list(client.chat.completions.create(**ask, stream=True, stream_options=usage))[-1].usage
    assert whole.prompt_tokens_details.cached_tokens == 0
    assert streamed.prompt_tokens_details.cached_tokens == (streamed.prompt_tokens - 1) // 16 * 16
    ask = {"model": MODEL, "prompt": LUNCH, "max_tokens": 5}
    whole = client.completions.create(**ask).usage
    streamed = list(client.completions.create(**ask, stream=True, stream_options=usage))[-1].usage
    assert whole.prompt_tokens_details.cached_tokens == 0
    assert streamed.prompt_tokens_details.cached_tokens == (len(LUNCH) - 1) // 16 * 16


def test_streamed_response_reports_too(running: Running) -> None:
    """The last event of a streamed response has the cached tokens, and the response echoes key and retention."""
    responder(running)(DINNER)
    client: Any = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
    fields = {"prompt_cache_key": "cooks", "prompt_cache_retention": "24h"}
    response = list(client.responses.create(model=MODEL, input=LUNCH, stream=True, **fields))[-1].response
    assert response.usage.input_tokens_details.cached_tokens == COMMON
    assert (response.prompt_cache_key, response.prompt_cache_retention) == ("cooks", "24h")


def test_generated_tokens_are_cached_with_their_prompt(running: Running) -> None:
    """A next turn finds the answer of the last one too, as far as its blocks are full."""
    client: Any = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
    first = client.completions.create(model=MODEL, prompt=DINNER, max_tokens=100)
    text = DINNER + first.choices[0].text
    second = client.completions.create(model=MODEL, prompt=text + " Go on." * 9)
    assert second.usage.prompt_tokens_details.cached_tokens == (len(text) - 1) // 16 * 16
