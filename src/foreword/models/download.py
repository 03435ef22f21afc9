"""One verified download: resumed where it broke off, checked by digest, put in place in one step."""

from __future__ import annotations

import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from foreword.errors import ModelFetchError
from foreword.models.digest import Digest

Progress = Callable[[str, int, int], None]
"""Called with a file's name, the bytes that are there and the bytes there will be."""


_CHUNK = 1 << 18
_ATTEMPTS = 4


def download(
    url: str,
    target: Path,
    *,
    size: int,
    digest: Digest,
    progress: Progress,
    headers: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
    timeout: float = 20.0,
) -> None:
    """Put the file of a URL at ``target``, which exists afterwards only whole and with the right digest.

    What has come stays in ``target.part`` when a download breaks off, and the next one goes on from there.

    Args:
        url: http, https or file.
        target: where the file goes; folders are made.
        size: bytes the file must have.
        digest: that it must have.
        progress: called as bytes come.
        headers: sent to the URL's own host only, never to where it redirects.
        context: TLS settings; None for the system's.
        timeout: seconds without a byte after which the connection counts as broken.

    Raises:
        ModelFetchError: it could not be fetched, or it is another file.
    """
    part = target.with_name(target.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(_ATTEMPTS):
        if _length(part) >= size:
            break
        try:
            request = _request(url, headers or {}, _length(part))
            with urllib.request.urlopen(request, timeout=timeout, context=context) as response:  # noqa: S310 - checked
                _append(response, part, size, progress)
        except (OSError, HTTPException) as error:
            _give_up_or_go_on(error, url, last=attempt == _ATTEMPTS - 1)
    if _length(part) < size:
        raise ModelFetchError(
            f"The connection to {url} broke off {_ATTEMPTS} times.", hint="Try again: it goes on from there.", url=url
        )
    _verify(part, url, size, digest)
    part.replace(target)


def _request(url: str, headers: Mapping[str, str], start: int) -> urllib.request.Request:
    if urlsplit(url).scheme not in ("http", "https", "file"):
        raise ModelFetchError(f"Cannot fetch {url}: only http, https and file URLs are fetched.")
    request = urllib.request.Request(url)  # noqa: S310 - the scheme is checked above
    for name, value in headers.items():
        request.add_unredirected_header(name, value)
    if start:
        request.add_header("Range", f"bytes={start}-")
    return request


def _append(response: Any, part: Path, size: int, progress: Progress) -> None:
    """Write what the server sends behind what is there; a server that does not resume starts over."""
    resumed = getattr(response, "status", 200) == 206
    name = part.name.removesuffix(".part")
    with part.open("ab" if resumed else "wb") as file:
        while chunk := response.read(_CHUNK):
            file.write(chunk)
            if file.tell() > size:
                raise ModelFetchError(f"{name} is larger than the {size:,} bytes it should have.")
            progress(name, file.tell(), size)


def _give_up_or_go_on(error: Exception, url: str, *, last: bool) -> None:
    """A refusal is final, and so is a host that cannot be reached; a broken connection is tried again."""
    if isinstance(error, ModelFetchError):
        raise error
    refused = isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 416
    if refused or last or isinstance(getattr(error, "reason", None), OSError):
        raise ModelFetchError(f"Cannot fetch {url}: {_reason(error)}.", url=url) from error


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    return str(getattr(error, "reason", None) or error or type(error).__name__)


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _verify(part: Path, url: str, size: int, digest: Digest) -> None:
    """A file with the wrong content is removed: going on from it could never end well."""
    found, value = _length(part), digest.of(part) if part.exists() else ""
    if found == size and value == digest.value:
        return
    part.unlink(missing_ok=True)
    raise ModelFetchError(
        f"What came from {url} is not the file it should be: {found:,} bytes with digest {value[:16]}... "
        f"in place of {size:,} with {digest.value[:16]}...",
        hint="It was removed; try again.",
        url=url,
        digest=value,
    )


def check_free_space(folder: Path, needed: int) -> None:
    """Raise ModelFetchError when the folder's disk has too little room."""
    folder.mkdir(parents=True, exist_ok=True)
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    if free < needed:
        raise ModelFetchError(
            f"{folder} has {free / 1e6:,.0f} MB free and {needed / 1e6:,.0f} are needed.",
            hint="Make room, or name another folder with FOREWORD_CACHE.",
        )
