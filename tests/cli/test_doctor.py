"""`foreword doctor`: settings and their sources, versions, models, and what cannot work."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from foreword.cli import main
from foreword.config import settings


def doctor(*args: str) -> tuple[dict[str, Any], int]:
    """The report as JSON, and the exit status."""
    result = CliRunner().invoke(main, ["doctor", "--format", "json", *args])
    return json.loads(result.stdout), result.exit_code


@pytest.fixture
def free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Port 0 is always free."""
    monkeypatch.setenv("FOREWORD_PORT", "0")


@pytest.mark.usefixtures("free_port")
def test_all_is_well() -> None:
    """With defaults nothing is wrong; every setting is shown with its source, and every library with its version."""
    report, status = doctor()
    assert (report["problems"], status) == ([], 0)
    assert [row[0] for row in report["settings"]] == [row.flag for row in settings()]
    assert ["--port", "0", "FOREWORD_PORT"] in report["settings"]
    assert report["versions"]["click"][0].isdigit()


def problems_of(monkeypatch: pytest.MonkeyPatch, **variables: str) -> list[dict[str, str]]:
    """What doctor finds with these variables."""
    for name, value in {"FOREWORD_PORT": "0", **variables}.items():
        monkeypatch.setenv(name, value)
    report, status = doctor()
    assert status == 1
    return list(report["problems"])


def test_a_taken_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that another process listens on is found."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = problems_of(monkeypatch, FOREWORD_PORT=str(port))
    assert found == [
        {"problem": f"127.0.0.1:{port} is in use by another process.", "remedy": "Choose another port with --port."}
    ]


@pytest.mark.parametrize(
    "variables,problem,remedy",
    [
        ({"FOREWORD_PROT": "1"}, "Unknown environment variable FOREWORD_PROT", "Correct it"),
        ({"FOREWORD_API_KEYS": "none"}, "none cannot be read", "Create it"),
        ({"FOREWORD_CHAT_TEMPLATE": "none"}, "none cannot be read", "Create it"),
        ({"FOREWORD_MODEL_PATH": "./none"}, "--model-path: There is no file, folder or model", "Give a folder"),
        ({"FOREWORD_TOKENIZER_PATH": "."}, "holds no tokenizer", "tokenizer.json"),
        ({"FOREWORD_HOST": "0.0.0.0"}, "lets other machines in", "--api-keys"),
    ],
)
def test_what_cannot_work_is_said_with_a_remedy(
    variables: dict[str, str], problem: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each mistake is one problem with one thing to do."""
    found = problems_of(monkeypatch, **variables)
    assert len(found) == 1
    assert problem in found[0]["problem"]
    assert remedy in found[0]["remedy"]


@pytest.mark.usefixtures("free_port")
def test_readable_keys_are_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key file that every user of the machine can read is named, with the command that closes it."""
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    keys.chmod(0o644)
    found = problems_of(monkeypatch, FOREWORD_API_KEYS=str(keys))
    assert found == [
        {"problem": f"--api-keys: every user of this machine can read {keys}.", "remedy": f"chmod 600 {keys}"}
    ]


@pytest.mark.usefixtures("free_port")
def test_a_damaged_model_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with a file of the wrong size is to be pulled again."""
    folder = tmp_path / "cache" / "models" / "m"
    folder.mkdir(parents=True)
    manifest = {"name": "m", "source": "s", "files": {"w": [5, "x"]}}
    (folder / "foreword.json").write_text(json.dumps(manifest))
    assert problems_of(monkeypatch) == [
        {"problem": "The model m is damaged: w is missing.", "remedy": "foreword models pull m"}
    ]


@pytest.mark.usefixtures("free_port")
def test_the_text_shows_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text report has its sections, and a password in a URL is not among them."""
    monkeypatch.setenv("FOREWORD_HOST", "127.0.0.1")
    result = CliRunner().invoke(main, ["doctor"])
    assert [line for line in result.stdout.splitlines() if line and line[0] != " "] == [
        "Installed",
        "Configured (flag, value, where from)",
        "Variables",
        "Models",
        "No problems",
    ]
    assert "--host                            127.0.0.1    FOREWORD_HOST" in result.stdout


def test_a_model_in_the_home_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that cannot be one is a problem like any other."""
    found = problems_of(monkeypatch, FOREWORD_TOKENIZER_PATH="~nobody-of-that-name/x")
    assert "There is no file, folder or model '~nobody-of-that-name/x'." in found[0]["problem"]
