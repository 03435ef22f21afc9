"""Cached tokens read off an answer that is passed on untouched: its usage stands at the end, streamed or not."""

from __future__ import annotations

import re

TAIL_BYTES = 4096
_CACHED = re.compile(rb'"cached_tokens"\s*:\s*(\d{1,9})|"cache_read_input_tokens"\s*:\s*(\d{1,9})')


class UsageSniffer:
    """Keeps the end of what passes by."""

    def __init__(self) -> None:
        self._tail = b""

    def push(self, chunk: bytes) -> None:
        """More of the answer."""
        self._tail = (self._tail + chunk)[-TAIL_BYTES:] if len(chunk) < TAIL_BYTES else chunk[-TAIL_BYTES:]

    def cached_tokens(self) -> int | None:
        """The last count in it; None where there is none."""
        found = _CACHED.findall(self._tail)
        return int(found[-1][0] or found[-1][1]) if found else None
