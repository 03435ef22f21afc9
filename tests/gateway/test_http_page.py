"""The HTTP reference names every route and every error code, and the page at / every route."""

from __future__ import annotations

import re
from pathlib import Path

import httpx

from foreword.testing.server import Running

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/http.md").read_text()


def test_every_route_is_documented(shared: Running) -> None:
    """The table of endpoints is the route table."""
    documented = re.findall(r"^\| (GET|POST|DELETE) \| `([^`]+)` \|", PAGE, re.MULTILINE)
    assert sorted(documented) == sorted((route.method, route.path) for route in shared.gateway.router.routes)


def test_every_error_code_is_documented() -> None:
    """The table of errors has every code that the gateway's source gives, and no other."""
    sources = "".join(path.read_text() for path in (ROOT / "src/foreword/gateway").rglob("*.py"))
    given = set(re.findall(r'code="(\w+)"', sources)) | set(re.findall(r'\d\d\d, (?:None|"\w+"), "(\w+)"\)', sources))
    given |= {"headers_too_large", "head_timeout", "invalid_http", "internal"}
    documented = set(re.findall(r"^\| \d\d\d \| `(\w+)` \|", PAGE, re.MULTILINE))
    assert documented == given


def test_page_lists_every_route(shared: Running, client: httpx.Client) -> None:
    """The page for browsers is self-contained HTML with every route, the model and a request to paste."""
    text = client.get("/").text
    assert all(route.path in text for route in shared.gateway.router.routes)
    assert "fake-model" in text
    assert "curl http://127.0.0.1" in text
    assert not re.search(r'(src|href)="(https?:)?//', text)
