"""The log: one line a request, with what the specification asks for and neither keys nor prompts."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog

from foreword.config import Config
from foreword.gateway import logs
from foreword.testing.server import MODEL, serve

Json = dict[str, Any]
SECRET = "sk-very-secret"
CHAT: Json = {
    "model": MODEL,
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "my private question"}],
}


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Read the JSON lines written since the last reading."""
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    logs.configure_logging(replace(Config(), log_format="json"))
    yield lambda: [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    structlog.reset_defaults()
    monkeypatch.setattr(logs, "_direct", None)


def test_line_of_a_generation(lines: Any, tmp_path: Path) -> None:
    """llm.request has ids, organisation, fingerprints, counts, worker and times; no key and no prompt."""
    keys = tmp_path / "keys"
    keys.write_text(f"acme {SECRET}\n")
    keys.chmod(0o600)
    with serve(api_keys=keys) as running:
        headers = {"authorization": f"Bearer {SECRET}", "x-request-id": "r1"}
        httpx.post(f"{running.url}/v1/chat/completions", json=CHAT, headers=headers)
    written = lines()
    line = next(line for line in written if line["event"] == "llm.request")
    assert (line["request_id"], line["org"], line["model"], line["worker"]) == ("r1", "acme", MODEL, "fake")
    assert (line["status"], line["cached_tokens"], line["completion_tokens"]) == (200, 0, 17)
    assert len(line["prefix_fp"]) == 16
    assert line["segments"]["tools_fp"] is None
    assert len(line["segments"]["system_fp"]) == 16
    assert 0 < line["ttft_ms"] <= line["duration_ms"]
    assert line["time"].endswith("Z")
    text = json.dumps(written)
    assert SECRET not in text
    assert "private" not in text


def test_prompt_is_logged_when_asked(lines: Any) -> None:
    """With --log-prompts the rendered prompt is in the line."""
    with serve(log_prompts=True) as running:
        httpx.post(f"{running.url}/v1/chat/completions", json=CHAT)
    assert any("my private question" in line.get("prompt", "") for line in lines())


def test_other_requests_have_a_line_too(lines: Any) -> None:
    """http.request, with the error's code where there is one; health checks are for debugging."""
    with serve() as running:
        httpx.post(f"{running.url}/v1/tokenize", json={"model": "none", "prompt": "a"})
        httpx.get(f"{running.url}/health")
    found = [line for line in lines() if line["event"] == "http.request"]
    assert [(line["path"], line["status"], line["error"]) for line in found] == [
        ("/v1/tokenize", 404, "model_not_found")
    ]
