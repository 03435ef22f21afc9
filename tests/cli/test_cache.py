"""`foreword cache`: what a running server's prefix caches hold, as tables and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from click.testing import CliRunner

from foreword.cli import main
from foreword.gateway import logs
from foreword.generation import DiskTierStatistics
from foreword.testing.server import MODEL, Running, serve


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The server runs in the command's process here: its log is not the command's output."""
    monkeypatch.setattr(logs, "_direct", None)  # an earlier test may have sent request lines straight to stderr
    with structlog.testing.capture_logs():
        yield


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A server that has answered one prompt three times."""
    path = tmp_path / "keys"
    path.write_text("acme sk-acme\nops sk-ops admin\n")
    path.chmod(0o600)
    with serve(api_keys=path) as found:
        body = {"model": MODEL, "prompt": "Keep it\nsimple: \x1b[31m" + "rice, " * 30, "max_tokens": 1}
        for _ in range(3):
            httpx.post(f"{found.url}/v1/completions", json=body, headers={"x-api-key": "sk-acme"})
        yield found


def run(*args: str, **variables: str) -> Any:
    """Call the command."""
    return CliRunner().invoke(main, ["cache", *args], env={"COLUMNS": "100", **variables})


def test_tables(running: Running) -> None:
    """Numbers, then prefixes by how they begin; control characters in them are shown, never sent to the terminal."""
    result = run(running.url, "--api-key", "sk-ops")
    assert result.exit_code == 0
    assert f"fake ({MODEL})" in result.stdout
    assert "blocks held  " in result.stdout
    assert "hit rate" in result.stdout
    row = next(line for line in result.stdout.splitlines() if "acme" in line)
    assert row.split()[:3] == ["2", "192", "acme"]
    assert "<s>Keep it↵simple: \\x1b[31mrice, rice," in row
    assert "\x1b" not in result.stdout


def test_the_disk_tier(running: Running) -> None:
    """What is kept for a day is shown where a worker keeps it on disk."""
    running.worker.disk = DiskTierStatistics(
        held=1200, bytes=900 << 20, max_bytes=4096 << 20, found=1000, stored=500, evicted=300, expired=200, reset=60,
        damaged=1, read=77, failed=0, queued=0,
    )  # fmt: skip
    lines = [" ".join(line.split()) for line in run(running.url, "--api-key", "sk-ops").stdout.splitlines()]
    assert "on disk 1,200 blocks, 900 of 4,096 MiB" in lines
    assert "disk traffic 500 written, 77 read" in lines
    assert "disk evicted 300, of them 200 expired, 60 by resets, 1 damaged" in lines


def test_json(running: Running) -> None:
    """What the server answered, with the number of prefixes asked for; the key can come from the environment."""
    result = run(running.url, "--json", "--limit", "0", FOREWORD_API_KEY="sk-ops")
    (worker,) = json.loads(result.stdout)["workers"]
    assert (worker["worker"], worker["requests"], worker["hottest"]) == ("fake", 3, [])


def test_the_configured_server_is_the_default(running: Running) -> None:
    """Without a URL the server that `foreword serve` would start is asked; 0.0.0.0 is here."""
    Path("foreword.toml").write_text(f'host = "0.0.0.0"\nport = {running.port}\n')
    result = run("--json", FOREWORD_API_KEY="sk-ops")
    assert json.loads(result.stdout)["workers"][0]["worker"] == "fake"


@pytest.mark.parametrize(
    "key,words",
    [("", "401: No API key was given"), ("sk-acme", "403: This needs an admin's API key")],
)
def test_refused(running: Running, key: str, words: str) -> None:
    """The server's reason and how to give a key, on one line."""
    result = run(running.url, "--api-key", key)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert words in result.stderr
    assert "--api-key or FOREWORD_API_KEY" in result.stderr


@pytest.mark.parametrize(
    "url,words", [("http://127.0.0.1:9", "Is the server running there?"), ("localhost", "no http:// or https:// URL")]
)
def test_no_server(url: str, words: str) -> None:
    """What is no server or no URL is said in words."""
    result = run(url)
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_server_without_workers() -> None:
    """It says that there are none."""
    with serve([]) as running:
        assert run(running.url).stdout == "This server has no workers.\n"


def test_doctor_keeps_the_key_to_itself() -> None:
    """`foreword doctor` says that a key is set, not which."""
    result = CliRunner().invoke(main, ["doctor"], env={"FOREWORD_API_KEY": "sk-very-secret"})
    assert "sk-very-secret" not in result.stdout
    assert "FOREWORD_API_KEY" in result.stdout
