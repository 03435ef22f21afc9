"""The cache salt of a body that is passed on: set by splicing, so that every other byte stays as the client wrote it.

Workers behind HTTP tokenise for themselves, and keep the prompts of organisations apart only by the field ``cache_salt`` of
the body (vLLM's and SGLang's name for it).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

import msgspec

from foreword.core.extra_keys import frame_salt

FIELD = "cache_salt"

_STRUCTURE = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},]', re.DOTALL)
_COLON = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")
_SPACE = b" \t\r\n"


def worker_salt(organisation: str, cache_salt: str | None) -> str:
    """The salt that a worker is sent for an organisation's own salt: a digest, the same in every gateway.

    64 hex digits: within vLLM's bound of 128 characters, and neither the organisation nor its salt can be read off it.
    """
    framed = frame_salt(organisation, cache_salt) or ""
    return hashlib.sha256(framed.encode("utf-8", "surrogatepass")).hexdigest()


def set_cache_salt(body: bytes, salt: str, *, present: bool) -> bytes:
    """The body with that salt in place of its own; ``present`` says whether it has the field.

    Args:
        body: a JSON object with at least one member, known to be valid.
        salt: plain ASCII.
        present: whether the object has the field, once or more often: every value is replaced.
    """
    value = b'"%b"' % salt.encode()
    if not present:
        start = body.index(b"{") + 1
        return b'%b"%b":%b,%b' % (body[:start], FIELD.encode(), value, body[start:])
    pieces, end = [], 0
    for start, stop in _value_spans(body, FIELD):
        pieces += [body[end:start], value]
        end = stop
    return b"".join([*pieces, body[end:]])


def _value_spans(body: bytes, name: str) -> Iterator[tuple[int, int]]:
    """Where the values of a member of the outermost object stand, however its name is escaped and often it comes."""
    depth, value_start = 0, 0
    for match in _STRUCTURE.finditer(body):
        token = match.group()
        if token in (b"{", b"["):
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
        if depth == 1 and token.startswith(b'"') and not value_start:
            colon = _COLON.match(body, match.end())
            if colon is not None and msgspec.json.decode(token) == name:
                value_start = colon.end()
        elif value_start and ((depth == 1 and token == b",") or depth == 0):
            yield value_start, _trim(body, match.start())
            value_start = 0


def _trim(body: bytes, end: int) -> int:
    """``end``, without the white space before it."""
    while body[end - 1] in _SPACE:
        end -= 1
    return end
