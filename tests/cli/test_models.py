"""`foreword models`: what there is, and what was fetched."""

import json
from pathlib import Path

from click.testing import CliRunner

from foreword.cli import main


def test_list_shows_the_catalogue() -> None:
    """What can be fetched is listed as not fetched; no network is asked."""
    result = CliRunner().invoke(main, ["models", "list"])
    assert result.stdout.startswith("smollm2-135m     not fetched    SmolLM2 135M Instruct")


def test_list_shows_what_is_there(tmp_path: Path) -> None:
    """A fetched model shows its folder, size and source, and whether its files are whole."""
    folder = tmp_path / "cache" / "models" / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "w").write_bytes(b"12345")
    (folder / "foreword.json").write_text(json.dumps({"name": "smollm2-135m", "source": "s", "files": {"w": [5, "x"]}}))

    rows = json.loads(CliRunner().invoke(main, ["models", "list", "--format", "json"]).stdout)
    assert rows[0] | {"description": ""} == {
        "name": "smollm2-135m",
        "state": "installed",
        "description": "",
        "licence": "Apache-2.0",
        "folder": str(folder),
        "bytes": 5,
        "source": "s",
    }
    (folder / "w").write_bytes(b"1")
    assert "damaged" in CliRunner().invoke(main, ["models", "list"]).stdout


def test_an_unknown_model_is_one_line() -> None:
    """Exit status 2, and the names there are."""
    result = CliRunner().invoke(main, ["models", "pull", "smollm3"])
    assert result.stderr == "foreword: There is no model 'smollm3' to fetch. There are: smollm2-135m.\n"
    assert result.exit_code == 2
