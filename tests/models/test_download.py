"""Downloads resume, are checked, and appear whole or not at all."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from foreword.errors import ModelFetchError
from foreword.models.digest import Digest
from foreword.models.download import check_free_space, download

DATA = bytes(range(256)) * 4096


def fetch(url: str, target: Path, **changed: Any) -> list[int]:
    """Download DATA to the target; gives the bytes reported on the way."""
    seen: list[int] = []
    wanted: dict[str, Any] = {"size": len(DATA), "digest": Digest("sha256", hashlib.sha256(DATA).hexdigest())}
    download(url, target, progress=lambda _name, done, _total: seen.append(done), **(wanted | changed))
    return seen


def test_a_file_arrives(server: Any, tmp_path: Path) -> None:
    """The file is there, its progress was told, and nothing else is left."""
    server.files["/f"] = DATA
    seen = fetch(f"{server.url}/f", tmp_path / "deep" / "f")

    assert (tmp_path / "deep" / "f").read_bytes() == DATA
    assert seen[-1] == len(DATA)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["f"]


def test_a_broken_download_goes_on_where_it_broke_off(server: Any, tmp_path: Path) -> None:
    """When connections break, each attempt fetches only what is missing, and so does the next call."""
    server.files["/f"] = DATA
    server.break_after = 200_000
    with pytest.raises(ModelFetchError, match="broke off 4 times"):
        fetch(f"{server.url}/f", tmp_path / "f")
    assert (tmp_path / "f.part").stat().st_size == 800_000
    assert not (tmp_path / "f").exists()

    server.break_after = None
    fetch(f"{server.url}/f", tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == DATA
    assert server.requests[-1][1]["Range"] == "bytes=800000-"


def test_a_server_that_cannot_resume_starts_over(server: Any, tmp_path: Path) -> None:
    """A 200 in answer to a Range request replaces what was there."""
    (tmp_path / "f.part").write_bytes(b"x" * 1000)
    server.files["/f"] = DATA
    server.ranges = False
    fetch(f"{server.url}/f", tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == DATA


def test_another_file_is_refused_and_removed(server: Any, tmp_path: Path) -> None:
    """Wrong content of the right size is an error with both digests, and is not resumed from."""
    server.files["/f"] = DATA[::-1]
    with pytest.raises(ModelFetchError, match="is not the file it should be") as caught:
        fetch(f"{server.url}/f", tmp_path / "f")
    assert caught.value.evidence["digest"] == hashlib.sha256(DATA[::-1]).hexdigest()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_never_ends_is_cut_off(server: Any, tmp_path: Path) -> None:
    """No more is written than the file should have, plus one chunk."""
    server.files["/f"] = DATA * 3
    with pytest.raises(ModelFetchError, match="larger than the 1,048,576 bytes"):
        fetch(f"{server.url}/f", tmp_path / "f")


def test_a_refusal_is_final(server: Any, tmp_path: Path) -> None:
    """404 is not tried again."""
    with pytest.raises(ModelFetchError, match="the server answers 404"):
        fetch(f"{server.url}/f", tmp_path / "f")
    assert len(server.requests) == 1


def test_no_server_is_one_clear_error(tmp_path: Path) -> None:
    """A refused connection is reported at once."""
    with pytest.raises(ModelFetchError, match="Connection refused"):
        fetch("http://127.0.0.1:1/f", tmp_path / "f")


def test_only_web_and_file_addresses_are_fetched(tmp_path: Path) -> None:
    """Other schemes are refused."""
    with pytest.raises(ModelFetchError, match="only http, https and file"):
        fetch("ftp://127.0.0.1/f", tmp_path / "f")


def test_a_git_digest_is_checked_as_well(server: Any, tmp_path: Path) -> None:
    """Small files of the hub are listed with the SHA-1 git gives them."""
    server.files["/f"] = b"hello\n"
    digest = Digest("git", "ce013625030ba8dba906f756967f9e9ca394464a")
    fetch(f"{server.url}/f", tmp_path / "f", size=6, digest=digest)
    assert (tmp_path / "f").read_bytes() == b"hello\n"


def test_a_full_disk_is_foreseen(tmp_path: Path) -> None:
    """Too little room is said before anything is fetched."""
    with pytest.raises(ModelFetchError, match=r"MB free and .* are needed"):
        check_free_space(tmp_path, 1 << 60)
