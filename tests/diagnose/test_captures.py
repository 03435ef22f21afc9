"""Reading requests: texts, bodies, JSONL, HAR, log lines of several dialects; and saying what is wrong with the rest."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from tests.cases.build import chat, claude, user

from foreword.diagnose.captures import capture_of, load_capture, read_captures
from foreword.diagnose.layout import surface_of
from foreword.errors import ForewordError

BODY = chat(user("Hi"))


def _write(path: Path, value: Any) -> str:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


def test_a_text_keeps_every_byte(tmp_path: Path) -> None:
    """CRLF, BOM and trailing spaces are what is looked for, so they stay."""
    (tmp_path / "a.txt").write_bytes("\ufeffline \r\nnext".encode())
    assert load_capture(str(tmp_path / "a.txt")).document == "\ufeffline \r\nnext"


def test_an_entry_of_a_log_is_named_by_its_number(tmp_path: Path) -> None:
    """``log.jsonl#1`` is the second line; without a number a log is refused."""
    log = _write(tmp_path / "log.jsonl", "\n".join(json.dumps({**BODY, "n": n}) for n in range(3)))
    assert load_capture(f"{log}#1").document["n"] == 1
    with pytest.raises(ForewordError, match=r"is a log\. Say which entry"):
        load_capture(log)
    with pytest.raises(ForewordError, match=r"has 3 entries; there is no #7"):
        load_capture(f"{log}#7")


def test_a_har_gives_bodies_in_the_order_they_were_sent(tmp_path: Path) -> None:
    """Only POSTed JSON counts, usage comes from the answer or the end of its stream, headers are not kept."""
    usage = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}
    stream = f'data: {{"choices": []}}\n\ndata: {json.dumps({"usage": usage})}\n\ndata: [DONE]\n'

    def entry(at: str, n: int, content: dict[str, Any]) -> dict[str, Any]:
        request = {"method": "POST", "headers": [{"name": "Authorization", "value": "Bearer sk-secret"}]}
        return {
            "startedDateTime": at,
            "time": 1500,
            "request": {**request, "postData": {"text": json.dumps({**BODY, "n": n})}},
            "response": {"content": content},
        }

    entries = [
        entry("2026-11-30T10:00:02Z", 2, {"text": base64.b64encode(stream.encode()).decode(), "encoding": "base64"}),
        entry("2026-11-30T10:00:01Z", 1, {"text": json.dumps({"usage": usage})}),
        {"request": {"method": "GET"}, "response": {}},
    ]
    captures = list(read_captures(_write(tmp_path / "x.har", {"log": {"entries": entries}})))
    assert [capture.document["n"] for capture in captures] == [1, 2]
    assert [capture.usage.cached_tokens for capture in captures if capture.usage] == [4, 4]
    assert captures[0].duration == 1.5
    assert "sk-secret" not in repr(captures)


@pytest.mark.parametrize(
    "line",
    [
        BODY,
        {"body": BODY},
        {"request": {"body": BODY}},
        {"request": json.dumps(BODY), "response": {"usage": {"prompt_tokens": 3}}},
        {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": BODY},
    ],
)
def test_the_body_is_found_in_every_dialect(line: Any) -> None:
    """Bare, wrapped, a string of JSON, a batch line."""
    assert capture_of(line).document == BODY


def test_what_the_provider_said_is_kept() -> None:
    """Anthropic's reason and OpenAI's diagnostics stand beside our verdict."""
    assert (
        capture_of({"body": BODY, "response": {"diagnostics": {"cache_miss_reason": "tools_changed"}}}).provider_reason
        == "tools_changed"
    )
    found = capture_of(
        {"body": BODY, "response": {"prompt_cache_diagnostics": {"tools_changed": True}}}
    ).provider_reason
    assert json.loads(found) == {"tools_changed": True}


@pytest.mark.parametrize(
    "body, surface",
    [
        (chat(user("a")), "chat"),
        (claude("s", user("a")), "messages"),
        ({"prompt": "a"}, "completions"),
        ({"input": "a"}, "responses"),
        ("a", "text"),
    ],
)
def test_the_surface_is_told_by_the_fields(body: Any, surface: str) -> None:
    """Four APIs and plain text."""
    assert surface_of(body) == surface


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("x.jsonl", '{"a": 1}\n{"a": \n', "line 2 is not JSON"),
        ("x.har", "{", "is not JSON"),
        ("x.json", "[" * 5 + '{"a":1}' + "]" * 5, None),
        ("deep.jsonl", '{"a":' * 300 + "1" + "}" * 300, "nested deeper than 200"),
        ("empty.jsonl", "", "holds no request"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path: Path, name: str, content: str, message: str | None) -> None:
    """One sentence, no traceback; what is no JSON object is a text."""
    path = _write(tmp_path / name, content)
    if message is None:
        assert load_capture(path).document == content
        return
    with pytest.raises(ForewordError, match=message):
        load_capture(path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    """The message names the byte."""
    (tmp_path / "a.txt").write_bytes(b"ok\xff")
    with pytest.raises(ForewordError, match=r"not UTF-8 \(byte 2\)"):
        load_capture(str(tmp_path / "a.txt"))
    with pytest.raises(ForewordError, match="Cannot read"):
        load_capture(str(tmp_path / "none.txt"))


ODD_ENTRIES: list[Any] = [
    7,
    {"request": None},
    {"request": {"postData": "x", "method": "POST"}},
    {"request": {"method": "POST", "postData": {"text": 5}}},
    {"request": {"method": "POST", "postData": {"text": json.dumps(BODY)}}, "response": None, "startedDateTime": 5},
    {
        "request": {"method": "POST", "postData": {"text": json.dumps(BODY)}},
        "response": {"content": {"encoding": "base64", "text": "%%%", "x": 1}},
        "time": "soon",
    },
    {
        "request": {"method": "POST", "postData": {"text": json.dumps(BODY)}},
        "response": {"content": {"text": "[" * 9000}},
    },
]


def test_a_broken_har_gives_what_can_be_read(tmp_path: Path) -> None:
    """Entries of the wrong shape are no requests; an answer that cannot be read is no answer."""
    path = _write(tmp_path / "a.har", {"log": {"entries": ODD_ENTRIES}})
    assert [capture.document for capture in read_captures(path)] == [BODY, BODY, BODY]
    for name, value in (("b.har", {}), ("c.har", {"log": 7}), ("d.har", {"log": {"entries": 5}}), ("e.har", [1])):
        assert list(read_captures(_write(tmp_path / name, value))) == []


@pytest.mark.parametrize("value", [{"log": None}, {"log": [1], "entries": 2}, {"notes": 5}, {"usage": 7, "time": "x"}])
def test_fields_of_the_wrong_type_are_left_out(value: dict[str, Any]) -> None:
    """A log line is read for what is right in it."""
    assert capture_of({**value, "body": BODY}).document == BODY


@pytest.mark.parametrize("ids", [7, ["a"], [1, -3], [1, 1 << 40], [2.5], [True]])
def test_token_ids_that_are_none_are_refused(ids: Any) -> None:
    """Ids are whole numbers of 32 bits; a log with others is wrong, and says where."""
    with pytest.raises(ForewordError, match="log#3 has token ids that are not whole numbers"):
        capture_of({"token_ids": ids}, "log#3")
