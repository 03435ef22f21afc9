"""A request on its way to one worker, and an HTTP answer on its way back."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from foreword.errors import WorkerError
from foreword.gateway.http_worker import ProxyResponse
from foreword.gateway.member import Member
from foreword.gateway.prefix_view import PrefixView
from foreword.gateway.usage_sniffer import NO_COUNTS, StreamEnd, TokenCounts, UsageSniffer


@dataclass(slots=True)
class Assignment:
    """A request on its way to one worker.

    Attributes:
        keys: the prompt's blocks, as the prefix view names them.
        uncached_tokens: what the worker is expected to prefill.
        expected_cached_tokens: what routing went by.
        predicted_cached_tokens: what the worker's events say it holds of the prompt's ids; None where either is not known.
        counts: what the worker of an HTTP answer said of it at its end.
        begun: whether the first output came.
    """

    member: Member
    view: PrefixView
    keys: Sequence[bytes]
    uncached_tokens: int
    expected_cached_tokens: int
    predicted_cached_tokens: int | None
    counts: TokenCounts = NO_COUNTS
    begun: bool = False

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.member.name

    def note_first_output(self, cached_tokens: int | None) -> None:
        """The prefill is done; note what the worker says of its cache, if it says so yet."""
        self.begun = True
        self.member.load.prefilled(self.uncached_tokens)
        self.view.prefilled(self.name, self.keys)
        if cached_tokens is not None:
            self.note_cached(cached_tokens)

    def note_cached(self, cached_tokens: int) -> None:
        """Compare what the worker says it had cached with what was predicted, or else with what was guessed."""
        if self.predicted_cached_tokens is None:
            self.member.guesses.compare(self.expected_cached_tokens, cached_tokens)
        else:
            self.member.predictions.compare(self.predicted_cached_tokens, cached_tokens)


class Relay:
    """An HTTP answer on its way through the fleet: its request is in flight until the body ends or is closed.

    Implements :class:`foreword.gateway.http_worker.ProxyResponse`. It owns the worker's answer and ``flight``, which takes the
    request off the books.
    """

    def __init__(self, assignment: Assignment, response: ProxyResponse, flight: contextlib.ExitStack) -> None:
        self._assignment = assignment
        self._response = response
        self._flight = flight
        self._sniffer = UsageSniffer()
        self._end = StreamEnd()
        self._first: bytes | None = None
        self.status = response.status
        self.headers = response.headers
        self.streams = any(
            name.lower() == b"content-type" and value.startswith(b"text/event-stream") for name, value in self.headers
        )

    async def open(self) -> None:
        """Wait for the body's first bytes: until they are there the request can go elsewhere. Raises WorkerError."""
        try:
            self._first = await self.read_chunk()
        except BaseException:
            self.close()
            raise

    async def read_chunk(self) -> bytes:
        """The next bytes of the body; empty at its end. Raises WorkerError when the worker breaks off."""
        if self._first is not None:
            chunk, self._first = self._first, None
            return chunk
        try:
            chunk = await self._read()
        except WorkerError:
            self._flight.__exit__(*sys.exc_info())
            raise
        if not self._assignment.begun:
            self._assignment.note_first_output(None)
        if chunk:
            self._sniffer.push(chunk)
            if self.streams:
                self._end.push(chunk)
        else:
            self._finish()
        return chunk

    async def _read(self) -> bytes:
        chunk = await self._response.read_chunk()
        if not chunk and self.streams and self.status == 200 and not self._end.seen:
            raise WorkerError(f"The worker {self._assignment.name} ended its answer before it was whole.")
        return chunk

    def _finish(self) -> None:
        counts = self._assignment.counts = self._sniffer.counts()
        if self.status < 500:
            self._assignment.member.succeed()
        if counts.cached is not None:
            self._assignment.note_cached(counts.cached)
        self.close()

    def close(self) -> None:
        """Let go, at the end of the body or before it."""
        self._response.close()
        self._flight.close()
