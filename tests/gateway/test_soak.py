"""Two workers killed at random under 32 clients; ten minutes of it are ``python -m benchmarks.soak``."""

from __future__ import annotations

import pytest
from benchmarks.soak import outcome, soak


@pytest.mark.slow
def test_two_minutes_of_killed_workers() -> None:
    """Every request is answered or refused with a typed error, and no memory, socket or worker slot stays behind."""
    report = soak(120.0)
    assert report.faults == []
    assert report.kills > 5
    assert report.outcomes["answered"] > 500


@pytest.mark.parametrize(
    "status, content_type, body, told",
    [
        (200, "application/json", b'{"usage": {}}', "answered"),
        (200, "text/event-stream", b'data: {"choices": []}\n\ndata: [DONE]\n\n', "answered"),
        (200, "text/event-stream", b'event: message_stop\ndata: {"type":"message_stop"}\n\n', "answered"),
        (200, "text/event-stream", b'data: {"error":{"code":"x"}}\n\ndata: [DONE]\n\n', "ended by an error event"),
        (200, "text/event-stream", b'data: {"choices": []}\n\n', "FAULT"),
        (200, "text/event-stream", b"", "FAULT"),
        (503, "application/json", b'{"error": {"message": "down"}}', "refused with 503"),
        (503, "text/html", b"<html>", "FAULT"),
        (500, "application/json", b'{"error": {"message": "bug"}}', "FAULT"),
    ],
)
def test_what_counts_as_an_answer(status: int, content_type: str, body: bytes, told: str) -> None:
    """A stream that stops in the middle, an untyped error or a 500 is a fault."""
    assert outcome(status, content_type, body).startswith(told)
