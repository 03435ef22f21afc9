"""Files are looked for where pip would look."""

import json
from pathlib import Path
from typing import Any

import pytest

from foreword.errors import ModelFetchError
from foreword.models.package_index import PackageIndex


def test_pip_settings_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables, as pip reads them, decide."""
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://one.example/x https://two.example/y")
    index = PackageIndex.from_pip()
    assert index.urls == ("https://mirror.example/simple", "https://one.example/x", "https://two.example/y")


def test_both_answers_of_the_simple_api_are_read(server: Any) -> None:
    """JSON (PEP 691) and HTML (PEP 503), with relative and absolute links."""
    server.files["/json/p/"] = json.dumps({"files": [{"filename": "p-1.whl", "url": "p-1.whl"}]}).encode()
    server.files["/html/p/"] = b'<html><a data-x="1" href="../../f/p-1.whl#sha256=aa&amp;b">p-1.whl</a>'

    assert PackageIndex((f"{server.url}/json",)).find("p", "p-1.whl") == f"{server.url}/json/p/p-1.whl"
    assert PackageIndex((f"{server.url}/html/",)).find("p", "p-1.whl") == f"{server.url}/f/p-1.whl#sha256=aa&b"


def test_indexes_are_asked_in_order_and_failures_named(server: Any) -> None:
    """An index that lacks the file is passed over; when all do, the error says what each answered."""
    server.files["/b/p/"] = b'{"files": []}'
    with pytest.raises(ModelFetchError) as caught:
        PackageIndex((f"{server.url}/a", f"{server.url}/b", "gopher://c")).find("p", "p-1.whl")
    first, second, third = caught.value.evidence["tried"]
    assert first.endswith("/a/p/: Not Found")
    assert second.endswith("/b/p/: no p-1.whl")
    assert third.endswith("not an http, https or file URL")


def test_credentials_of_an_index_go_into_a_header_and_no_message(server: Any) -> None:
    """user:password@ becomes Basic authentication and is never shown."""
    address = server.url.replace("http://", "http://me:s%20cret@")
    with pytest.raises(ModelFetchError) as caught:
        PackageIndex((address,)).find("p", "p-1.whl")
    assert server.requests[0][1]["Authorization"] == "Basic bWU6cyBjcmV0"
    assert "cret" not in str(caught.value)


def test_find_links_come_first(tmp_path: Path) -> None:
    """A folder that holds the file needs no index."""
    (tmp_path / "p-1.whl").write_bytes(b"")
    index = PackageIndex(("http://127.0.0.1:1",), find_links=(str(tmp_path),))
    assert index.find("p", "p-1.whl") == (tmp_path / "p-1.whl").as_uri()
