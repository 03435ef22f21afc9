"""The gateway's own verdict over a real socket: headers, /v1/seams, /v1/fingerprints, metrics, `foreword watch`."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from click.testing import CliRunner

from foreword.cli.main import main
from foreword.errors import ConfigError
from foreword.testing.server import MODEL, Running, serve


@pytest.fixture(scope="module")
def judged() -> Iterator[Running]:
    """A server that puts verdicts into its responses."""
    with serve(seam_headers=True) as running:
        yield running


def ask(running: Running, clock: str, *more: str, stream: bool = False, lane: str = "") -> httpx.Response:
    """A conversation whose system text holds a clock."""
    messages = [
        {
            "role": "system",
            "content": f"It is {clock} now. " + "Answer from the manual, in short, and say which page. " * 9,
        }
    ]
    for n, text in enumerate(("First question?", *more)):
        messages.append({"role": "assistant" if n % 2 else "user", "content": text})
    body = {"model": MODEL, "messages": messages, "max_tokens": 1, "stream": stream}
    response = httpx.post(
        f"{running.url}/v1/chat/completions", json=body, headers={"x-foreword-lane": lane}, timeout=30
    )
    assert response.status_code == 200
    return response


@pytest.mark.parametrize("kind", ["whole", "stream"])
def test_headers_say_where_the_prefix_broke(judged: Running, kind: str) -> None:
    """A clock is a seam with its cause; an appended turn shares all of the earlier prompt and has no cause."""
    lane, stream = f"headers-{kind}", kind == "stream"
    first = ask(judged, "10:00:01", stream=stream, lane=lane)
    assert first.headers["x-foreword-shared-tokens"] == "0"
    broken = ask(judged, "10:00:09", "It is so.", "Why?", stream=stream, lane=lane)
    assert broken.headers["x-foreword-cause"] == "A1"
    assert broken.headers["x-foreword-seam"] == broken.headers["x-foreword-shared-tokens"] != "0"
    appended = ask(judged, "10:00:09", "It is so.", "Why?", "So.", "And?", stream=stream, lane=lane)
    assert "x-foreword-cause" not in appended.headers
    assert int(appended.headers["x-foreword-shared-tokens"]) > 50


def test_the_last_verdicts_can_be_read(judged: Running) -> None:
    """Rows in order, paged by number, without prompt text."""
    ask(judged, "11:00:01", lane="rows")
    ask(judged, "11:00:02", lane="rows")
    data = httpx.get(f"{judged.url}/v1/seams").json()["data"]
    last = data[-1]
    assert (last["relation"], last["code"], last["path"], last["a_text"], last["b_text"]) == (
        "seam",
        "A1",
        "messages[0].content",
        "",
        "",
    )
    assert [row["number"] for row in httpx.get(f"{judged.url}/v1/seams?after={last['number'] - 1}").json()["data"]] == [
        last["number"]
    ]
    bad = httpx.get(f"{judged.url}/v1/seams?after=x")
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "after")


def test_fingerprints_and_metrics_count(judged: Running) -> None:
    """Distinct prefixes by window, and verdicts by cause."""
    ask(judged, "12:00:01", lane="counts")
    ask(judged, "12:00:02", lane="counts")
    found = httpx.get(f"{judged.url}/v1/fingerprints").json()
    assert found["window_seconds"] == 300
    assert max(window["distinct"].get("system_fp", 0) for lane in found["data"] for window in lane["windows"]) >= 2
    assert 'foreword_seam_verdicts_total{cause="A1",model=' in httpx.get(f"{judged.url}/metrics").text


def complete(running: Running, prompt: object, lane: str) -> httpx.Headers:
    """The headers of one answer of /v1/completions."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
    response = httpx.post(f"{running.url}/v1/completions", json=body, headers={"x-foreword-lane": lane}, timeout=30)
    assert response.status_code == 200
    return response.headers


def test_completions_are_judged_as_chat_is(judged: Running) -> None:
    """A clock ahead of the rest is a seam; another question at the end and a longer text are none."""
    text = "It is {} now. " + "Answer from the manual, in short, and say which page. " * 9
    assert complete(judged, text.format("10:00:01"), "text")["x-foreword-shared-tokens"] == "0"
    broken = complete(judged, text.format("10:00:09") + "Why?", "text")
    assert broken["x-foreword-cause"] == "A1"
    assert broken["x-foreword-seam"] == broken["x-foreword-shared-tokens"] != "0"
    asked = complete(judged, text.format("10:00:09") + "Who?", "text")
    assert "x-foreword-cause" not in asked
    assert int(asked["x-foreword-shared-tokens"]) > 50


def test_prompts_of_ids_are_judged_by_their_ids(judged: Running) -> None:
    """A first token that one side lacks is E3; ids that go on are no seam; a list of prompts gets the first's headers."""
    ids = list(range(20, 60))
    complete(judged, ids, "ids")
    assert "x-foreword-cause" not in complete(judged, [*ids, 7], "ids")
    assert complete(judged, [1, *ids], "ids")["x-foreword-cause"] == "E3"
    several = complete(judged, [[*ids, 9], [3, 4, 5]], "ids")
    assert int(several["x-foreword-shared-tokens"]) == len(ids)


def test_watch_prints_a_line_a_request(judged: Running) -> None:
    """The bar, the tokens, the cause and the place."""
    ask(judged, "13:00:01", lane="watch")
    ask(judged, "13:00:02", lane="watch")
    result = CliRunner().invoke(main, ["watch", judged.url, "--once"])
    assert result.exit_code == 0
    assert "A1 clock or date ahead of stable text (messages[0].content)" in result.stdout.splitlines()[-1]
    gone = CliRunner().invoke(main, ["watch", "http://127.0.0.1:9", "--once"])
    assert gone.exit_code == 2


def test_watch_waits_for_a_gateway_that_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says once that the gateway is away, and prints what the new one counts from one."""
    row = {
        "number": 1,
        "time": 0,
        "prompt_tokens": 9,
        "shared_tokens": 0,
        "lost_tokens": 0,
        "seam": None,
        "relation": "first",
    }
    gone = ConfigError("It does not answer.")
    answers = iter([(40, [{**row, "number": 40}]), gone, gone, (1, []), (1, [row]), KeyboardInterrupt()])

    def fetch(*_: object) -> object:
        answer = next(answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr("foreword.cli.watch.fetch_rows", fetch)
    monkeypatch.setattr("time.sleep", lambda _: None)
    result = CliRunner().invoke(main, ["watch", "http://gateway", "--format", "json"])
    assert [json.loads(line)["number"] for line in result.stdout.splitlines() if line.startswith("{")] == [40, 1]
    assert result.stderr.count("Waiting for it.") == 1


def test_without_the_flag_there_are_no_headers(shared: Running) -> None:
    """Verdicts in responses are opt-in."""
    assert not any(name.startswith("x-foreword") for name in ask(shared, "10:00:01").headers)
