"""`foreword tokenize`: ids, chips and JSON, from arguments and pipes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from foreword.cli import main
from foreword.testing.gguf_files import TINY_TOKENIZER, gguf_bytes


def run(*args: str, stdin: str | bytes | None = None) -> Any:
    """Call the command."""
    return CliRunner().invoke(main, ["tokenize", *args], input=stdin)


def test_ids_are_printed_on_a_line(tokenizer_folder: Path) -> None:
    """The ids of the argument, separated by spaces."""
    result = run("--tokenizer-path", str(tokenizer_folder), "abc<|end|>")
    assert (result.stdout, result.exit_code) == ("4 3 0\n", 0)


def test_standard_input_is_taken_as_it_is(tokenizer_folder: Path) -> None:
    """A pipe is read whole, with `-` and without it."""
    for args in ((), ("-",)):
        result = run("--tokenizer-path", str(tokenizer_folder), *args, stdin="ab c")
        assert result.stdout == "4 5 3\n"


def test_chips_show_where_tokens_end(tokenizer_folder: Path) -> None:
    """Without colours each token stands in brackets; special tokens are shown."""
    result = run("--tokenizer-path", str(tokenizer_folder), "--format", "chips", "abc a<|end|>")
    assert result.stdout == "[ab][c][ ][a][<|end|>]\n"


def test_json_says_everything(tokenizer_folder: Path) -> None:
    """Ids with their text, counts, and who the tokenizer is."""
    content = json.loads(run("--tokenizer-path", str(tokenizer_folder), "--format", "json", "abc").stdout)
    assert content["tokens"] == [{"id": 4, "text": "ab"}, {"id": 3, "text": "c"}]
    assert (content["count"], content["char_count"], content["tokenizer"]["name"]) == (2, 3, "tiny")


def test_a_gguf_file_is_a_tokenizer(tmp_path: Path) -> None:
    """Its tokenizer is rebuilt and used."""
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(TINY_TOKENIZER))
    assert run("--tokenizer-path", "m.gguf", "ab").stdout == "4\n"


def test_the_configured_tokenizer_is_the_default(tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `foreword serve` would use is used here."""
    monkeypatch.setenv("FOREWORD_TOKENIZER_PATH", str(tokenizer_folder))
    assert run("ab").stdout == "4\n"


@pytest.mark.parametrize(
    "args,stdin,message",
    [
        (["hi"], None, "smollm2-135m is not in"),
        (["--tokenizer-path", "nowhere", "hi"], None, "There is no file, folder or model 'nowhere'"),
        (["--tokenizer-path", "tiny"], b"\xff", "Standard input is not UTF-8"),
    ],
)
def test_mistakes_are_one_line(
    args: list[str], stdin: bytes | None, message: str, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors go to stderr in one line that says what to do, with exit status 2."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tokenizer_folder / "none"))
    result = run(*args, stdin=stdin)
    assert result.stderr.startswith("foreword: ")
    assert message in result.stderr
    assert (result.stdout, result.stderr.count("\n"), result.exit_code) == ("", 1, 2)


def test_a_closed_pipe_is_no_error(tokenizer_folder: Path) -> None:
    """`foreword tokenize ... | head -c 1` ends without a word."""
    command = [sys.executable, "-m", "foreword", "tokenize", "--tokenizer-path", str(tokenizer_folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    process.stdin.write(b"abc " * 100_000)
    process.stdin.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait(30)
