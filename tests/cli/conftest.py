"""What the commands are tested with: a tiny tokenizer and an environment of their own."""

import os
from pathlib import Path

import pytest

from foreword.testing.gguf_files import TINY_TOKENIZER
from foreword.tokens.gguf import tokenizer_files


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    """A folder with a tokenizer that knows a, b, c and the space."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    for name, text in tokenizer_files(dict(TINY_TOKENIZER)).items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(autouse=True)
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine's user is seen, and no file of theirs touched."""
    for name in [name for name in os.environ if name.startswith("FOREWORD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FOREWORD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.chdir(tmp_path)
