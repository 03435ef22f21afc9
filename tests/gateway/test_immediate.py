"""Answers given at once: the same to the client, the metrics and the log as those of the usual way."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from foreword.gateway.immediate import Immediate
from foreword.testing.server import MODEL, Running, serve

BODY = json.dumps({"model": MODEL, "prompt": "abc"}).encode()
START = b"POST /v1/tokenize HTTP/1.1\r\nhost: x\r\n"
LENGTH = b"content-length: %d\r\n" % len(BODY)
PLAIN = START + LENGTH + b"\r\n" + BODY


@pytest.fixture
def immediate(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each piece of data that was looked at, whether it was answered at once."""
    seen: list[bool] = []
    original = Immediate.answer

    def answer(self: Immediate, *args: Any) -> bytes | None:
        response = original(self, *args)
        seen.append(response is not None)
        return response

    monkeypatch.setattr(Immediate, "answer", answer)
    return seen


def exchange(running: Running, *pieces: bytes, responses: int = 1) -> bytes:
    """Send the pieces one after the other and read so many responses, whose bodies end in ``}``."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=5) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            raw.sendall(piece)
            time.sleep(0.02)
        answer = b""
        while answer.count(b"}") < responses and (chunk := raw.recv(65536)):
            answer += chunk
    return answer


def without_changing_headers(response: bytes) -> list[bytes]:
    """The lines of a response but for its date and request id."""
    return [line for line in response.split(b"\r\n") if not line.startswith((b"date:", b"x-request-id:"))]


def test_same_response_both_ways(immediate: list[bool]) -> None:
    """The first identical body takes the usual way, the second is answered at once, with the same response."""
    with serve() as running:
        first, second = exchange(running, PLAIN), exchange(running, PLAIN)
    assert immediate == [False, True]
    assert without_changing_headers(first) == without_changing_headers(second)
    assert second.endswith(b'{"tokens":[97,98,99],"count":3,"char_count":3}')


def test_counted_like_any_other() -> None:
    """Requests, L0 hits and cached tokens count those answered at once."""
    with serve() as running:
        for _ in range(4):
            exchange(running, PLAIN)
        metrics = httpx.get(f"{running.url}/metrics").text
    assert 'foreword_requests_total{route="/v1/tokenize",status="200"} 4.0' in metrics
    assert 'foreword_tokenizer_cache_lookups_total{layer="l0",result="hit"} 3.0' in metrics


def test_takes_the_clients_request_id(immediate: list[bool]) -> None:
    """x-request-id is echoed when sane, also when the answer is ready."""
    with serve() as running:
        answers = [exchange(running, START + b"X-Request-Id: mine\r\n" + LENGTH + b"\r\n" + BODY) for _ in range(2)]
    assert immediate == [False, True]
    assert [b"\r\nx-request-id: mine\r\n" in answer for answer in answers] == [True, True]


@pytest.mark.parametrize(
    "header, status",
    [
        (b"connection: close\r\n", b"200"),
        (b"expect: 100-continue\r\n", b"100"),
        (b"content-type: text/plain\r\n", b"415"),
        (b"content-length: 1\r\n", b"400"),
        (b"transfer-encoding: chunked\r\n", b"400"),
        (b"no header\r\n", b"400"),
        (b"a: " + b"a" * 5000 + b"\r\n", b"200"),
    ],
)
def test_unusual_heads_take_the_usual_way(immediate: list[bool], header: bytes, status: bytes) -> None:
    """A head that is not plain is never answered at once, though its body is known."""
    with serve() as running:
        exchange(running, PLAIN)
        answer = exchange(running, START + header + LENGTH + b"\r\n" + BODY)
    assert True not in immediate
    assert answer.startswith(b"HTTP/1.1 " + status)


def test_in_pieces_and_pipelined(immediate: list[bool]) -> None:
    """A request in two pieces, or two in one, are answered in order, before and after one that is whole."""
    with serve() as running:
        exchange(running, PLAIN)
        answer = exchange(running, PLAIN, PLAIN[:-5], PLAIN[-5:], PLAIN, PLAIN + PLAIN, PLAIN, responses=6)
    assert answer.count(b"HTTP/1.1 200 OK") == 6
    assert answer.count(b'"tokens":[97,98,99]') == 6
    assert immediate[-1]
    assert immediate.count(True) == 3


def test_keys_are_asked(tmp_path: Path, immediate: list[bool]) -> None:
    """A ready answer is for the organisation that paid for it; without a known key it is 401."""
    keys = tmp_path / "keys"
    keys.write_text("acme k1\nother k2\n")
    keys.chmod(0o600)
    with serve(api_keys=keys) as running:
        request = START + b"authorization: Bearer %b\r\n" + LENGTH + b"\r\n" + BODY
        answers = [exchange(running, request % key)[:12] for key in (b"k1", b"k1", b"k2", b"k3")]
        answers.append(exchange(running, PLAIN)[:12])
    assert immediate == [False, True, False, False, False]
    assert answers == [b"HTTP/1.1 200", b"HTTP/1.1 200", b"HTTP/1.1 200", b"HTTP/1.1 401", b"HTTP/1.1 401"]


def test_limits_hold(immediate: list[bool]) -> None:
    """A draining server refuses what it could answer at once."""
    with serve() as running:
        for _ in range(2):
            exchange(running, PLAIN)
        running.gateway.drain()
        answer = exchange(running, PLAIN)
    assert immediate == [False, True, False]
    assert answer.startswith(b"HTTP/1.1 503 ")


def test_idle_connection_is_closed() -> None:
    """The keep-alive time runs from the last answer, whichever way it was given."""
    with serve() as running:
        exchange(running, PLAIN)
        running.server.config.timeout_keep_alive = 1
        with socket.create_connection(("127.0.0.1", running.port), timeout=5) as raw:
            for _ in range(3):
                raw.sendall(PLAIN)
                assert raw.recv(65536).startswith(b"HTTP/1.1 200 ")
                last = time.monotonic()
                time.sleep(0.6)
            assert raw.recv(1) == b""
            assert 0.9 < time.monotonic() - last < 3
