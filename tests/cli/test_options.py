"""The settings as click options."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from foreword.cli.options import settings_command
from foreword.config import Config, settings


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Call a command that takes every setting; gives the Config it got."""
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("FOREWORD_")]:
        monkeypatch.delenv(variable)
    seen: list[Config] = []

    @settings_command("command", short_help="")
    def command(config: Config) -> None:
        """Take settings."""
        seen.append(config)

    def call(*args: str) -> Any:
        result = CliRunner().invoke(command, args)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return seen.pop() if seen else result.output

    return call


def test_flags_become_a_config(run: Any) -> None:
    """Every kind of flag arrives with its value and its source."""
    config = run("--port", "1", "--tokenizer-cache-enable-l0", "--no-log-prompts", "--api-keys", "f")

    assert (config.port, config.tokenizer_cache_enable_l0, config.log_prompts) == (1, True, False)
    assert config.api_keys == Path("f")
    assert config.source("log_prompts") == "--log-prompts"


def test_list_flags_take_several_words(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--worker-urls A B --port 1`, repeated flags and commas all mean the same."""
    monkeypatch.setattr("foreword.config.load.WORKER_SCHEMES", ("http",))
    expected = ("http://a", "http://b")

    assert run("--worker-urls", "http://a", "http://b", "--port", "1").worker_urls == expected
    assert run("--worker-urls", "http://a", "--worker-urls", "http://b").worker_urls == expected
    assert run("--worker-urls", "http://a,http://b").worker_urls == expected


def test_words_that_belong_to_no_flag_are_refused(run: Any) -> None:
    """Only list flags take more than one word."""
    assert "unexpected extra argument (x)" in run("--port", "1", "x")


def test_config_file_is_read(run: Any, tmp_path: Path) -> None:
    """`--config FILE` names the TOML file, and ./foreword.toml is read without being named."""
    (tmp_path / "other.toml").write_text("port = 5\n")
    (tmp_path / "foreword.toml").write_text("port = 6\n")

    assert run("--config", "other.toml").port == 5
    assert run().port == 6


def test_help_names_every_flag_and_variable(run: Any) -> None:
    """Nothing of the table is missing from --help."""
    words = run("--help").split()
    for row in settings():
        assert any(row.flag == word for word in words), row.flag
        assert any(row.variable in word for word in words), row.variable


@pytest.mark.parametrize("args", [["--help"]])
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    """--help answers within 150 ms on an idle machine because it loads click and the table only."""
    program = (
        "import sys\nfrom foreword.cli import main\n"
        f"sys.argv = ['foreword', *{args!r}]\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(sorted({'numpy', 'rich', 'starlette', 'tokenizers', 'jinja2', 'structlog', 'huggingface_hub', 'gguf',"
        " 'asyncio', 'uvicorn', 'msgspec'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
