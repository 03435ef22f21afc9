"""Server-sent events, as OpenAI's streams frame them."""

from __future__ import annotations

from typing import Any

import msgspec

from foreword.gateway.errors import ApiError

DONE = b"data: [DONE]\n\n"


def event(data: Any) -> bytes:
    """An event of JSON data without a name."""
    return b"data: %b\n\n" % msgspec.json.encode(data)


def named_event(name: str, data: Any) -> bytes:
    """An event of JSON data with a name."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))


def error_event(error: ApiError) -> bytes:
    """The last event of a chat or completion stream that broke; SDKs raise it."""
    return event({"error": error.as_dict()}) + DONE
