"""What is read off an answer that is passed on untouched: its token counts, and whether a stream came to its end.

Usage stands at an answer's end, or in Anthropic's streams at both ends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

END_BYTES = 4096
"""Bytes kept of an answer's beginning, and of its end."""

_COUNT = re.compile(
    rb'"(prompt_tokens|input_tokens|completion_tokens|output_tokens|cached_tokens|cache_read_input_tokens'
    rb'|cache_creation_input_tokens)"\s*:\s*(\d{1,9})(?![\d.eE])'
)


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """What a worker said of one request; None where it did not.

    Attributes:
        prompt: the whole prompt, cached tokens included.
    """

    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None


NO_COUNTS = TokenCounts()


class UsageSniffer:
    """Keeps both ends of what passes by."""

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""

    def push(self, chunk: bytes) -> None:
        """More of the answer."""
        if len(self._head) < END_BYTES:
            self._head += chunk[: END_BYTES - len(self._head)]
        self._tail = (self._tail + chunk)[-END_BYTES:] if len(chunk) < END_BYTES else chunk[-END_BYTES:]

    def counts(self) -> TokenCounts:
        """The last counts of each kind."""
        found = {name: int(value) for name, value in _COUNT.findall(self._head + b"\n" + self._tail)}
        cached = found.get(b"cached_tokens", found.get(b"cache_read_input_tokens"))
        prompt = found.get(b"prompt_tokens", found.get(b"input_tokens"))
        if prompt is not None and b"cached_tokens" not in found:  # Anthropic counts apart what was read and written
            prompt += found.get(b"cache_read_input_tokens", 0) + found.get(b"cache_creation_input_tokens", 0)
        if (
            cached is not None and prompt is not None and cached > prompt
        ):  # it cannot be meant, and would spoil the sums
            cached = None
        return TokenCounts(prompt, cached, found.get(b"completion_tokens", found.get(b"output_tokens")))


_END = re.compile(
    rb"[\r\n](?:data: ?\[DONE\]|data: ?\{\s*\"error\"|event: ?(?:error|message_stop|response\.(?:completed|incomplete|failed)))"
    rb'|"(?:finish|stop)_reason": ?"'
)
"""A stream's last event, in the words of each API, or what says that none but usage follows. No text of a model's can look
like it: within JSON, line ends and quotes are escaped."""
_LONGEST = 64
"""Bytes that a match takes at most."""


class StreamEnd:
    """Watches a stream of events for its end: one that stops without it was cut, however politely."""

    __slots__ = ("_rest", "seen")

    def __init__(self) -> None:
        self._rest = b"\n"
        self.seen = False

    def push(self, chunk: bytes) -> None:
        """More of the stream."""
        if not self.seen:
            passage = self._rest + chunk
            self.seen = _END.search(passage) is not None
            self._rest = passage[-_LONGEST:]
