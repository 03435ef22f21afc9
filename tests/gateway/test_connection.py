"""HTTP itself: heads that are too large or too slow, keep-alive, pipelining, clients that leave."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable

import httpx
import pytest

from foreword.gateway import connection, middleware
from foreword.testing.server import MODEL, Running, serve
from foreword.testing.workers import FakeWorker


def connect(running: Running) -> socket.socket:
    """A raw connection."""
    return socket.create_connection(("127.0.0.1", running.port), timeout=5)


def read_all(raw: socket.socket) -> bytes:
    """Everything until the server hangs up."""
    answer = b""
    while chunk := raw.recv(65536):
        answer += chunk
    return answer


def tokenize(prompt: str, *headers: bytes) -> bytes:
    """A request as bytes."""
    body = json.dumps({"model": MODEL, "prompt": prompt}).encode()
    head = [b"POST /v1/tokenize HTTP/1.1", b"host: x", b"content-type: application/json", *headers]
    return b"\r\n".join([*head, b"content-length: %d" % len(body), b"", body])


def wait_for(condition: Callable[[], bool]) -> None:
    """Until something is so, for at most five seconds."""
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def error_code(answer: bytes) -> str:
    """The code of the error in a raw response."""
    code: str = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"]
    return code


@pytest.mark.parametrize("pieces", [1, 40])
def test_oversized_head(shared: Running, pieces: int) -> None:
    """A head over 64 KB is 431 and the connection is closed, however it arrives."""
    with connect(shared) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n")
        for number in range(pieces):
            raw.sendall(b"x-%d: " % number + b"a" * (68_000 // pieces) + b"\r\n")
            time.sleep(0.001)
        answer = read_all(raw)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert error_code(answer) == "headers_too_large"


def test_slow_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that trickles in is 408 when its time is up, while other clients are served."""
    monkeypatch.setattr(connection, "HEAD_TIMEOUT", 0.3)
    with serve() as running, connect(running) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nhost")
        assert httpx.get(f"{running.url}/health").status_code == 200
        answer = read_all(raw)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert error_code(answer) == "head_timeout"


def test_slow_head_of_a_later_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock runs for every head of a connection, not only the first."""
    monkeypatch.setattr(connection, "HEAD_TIMEOUT", 0.3)
    with serve() as running, connect(running) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        wait_for(lambda: b"alive" in raw.recv(65536))
        raw.sendall(b"GET /health HTTP/1.1\r\nho")
        assert read_all(raw).startswith(b"HTTP/1.1 408 ")


def test_slow_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that trickles in is 408 when its time is up."""
    monkeypatch.setattr(middleware, "BODY_TIMEOUT", 0.3)
    with serve() as running, connect(running) as raw:
        raw.sendall(tokenize("a")[:-3])
        answer = read_all(raw)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert error_code(answer) == "body_timeout"


def test_no_http(shared: Running) -> None:
    """What is no HTTP is 400 in the API's shape, and the connection is closed."""
    with connect(shared) as raw:
        raw.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        answer = read_all(raw)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert error_code(answer) == "invalid_http"


def test_keep_alive(shared: Running) -> None:
    """One connection serves many requests, errors included."""
    with connect(shared) as raw:
        for number in range(50):
            raw.sendall(tokenize("x" * number) if number % 5 else b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n")
            answer = raw.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200 " if number % 5 else b"HTTP/1.1 404 ")


def test_pipelining(shared: Running) -> None:
    """Requests sent at once are answered in their order."""
    with connect(shared) as raw:
        raw.sendall(b"".join(tokenize("x" * number) for number in range(20)) + tokenize("end", b"connection: close"))
        answers = read_all(raw).split(b"HTTP/1.1 200 OK")[1:]
    counts = [json.loads(answer.partition(b"\r\n\r\n")[2])["count"] for answer in answers]
    assert counts == [*range(20), 3]


def test_request_ids(client: httpx.Client) -> None:
    """A sane id is taken over, any other replaced; each made here is new."""
    given = client.get("/health", headers={"x-request-id": "my-id.1"})
    assert given.headers["x-request-id"] == "my-id.1"
    made = {client.get("/health", headers={"x-request-id": "a b" * 99}).headers["x-request-id"] for _ in range(5)}
    assert len(made) == 5


@pytest.mark.parametrize("stream", [False, True])
def test_client_gone(*, stream: bool) -> None:
    """When the client hangs up the worker's request is aborted, streamed or not."""
    worker = FakeWorker(answer=b"Paris, of course.")
    worker.hang_after = 2
    with serve([worker]) as running:
        body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": stream}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        with connect(running) as raw:
            raw.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
            wait_for(lambda: worker.running == 1)
            if stream:
                raw.recv(10)
        wait_for(lambda: worker.running == 0)
        assert len(worker.aborted) == 1
        wait_for(lambda: len(running.gateway.in_flight) == 0)


def test_too_many_requests() -> None:
    """So many run, so many wait, and the next is told to come back: 429 with Retry-After."""
    worker = FakeWorker()
    worker.hang_after = 0
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
    request = json.dumps(body).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    with serve([worker], max_concurrent_requests=2, max_queued_requests=1) as running:
        raws = [connect(running) for _ in range(3)]
        for raw in raws:
            raw.sendall(head + b"content-length: %d\r\n\r\n" % len(request) + request)
        wait_for(lambda: worker.running == 2 and running.gateway.limit.queued == 1)
        response = httpx.post(f"{running.url}/v1/chat/completions", json=body)
        assert (response.status_code, response.headers["retry-after"]) == (429, "1")
        assert response.json()["error"]["code"] == "too_many_requests"
        assert httpx.get(f"{running.url}/health").status_code == 200
        metrics = httpx.get(f"{running.url}/metrics").text
        assert "foreword_requests_running 2.0" in metrics
        assert "foreword_requests_queued 1.0" in metrics
        for raw in raws:
            raw.close()
        wait_for(lambda: len(running.gateway.in_flight) == 0)


def test_head_request(client: httpx.Client) -> None:
    """HEAD is answered as GET, without a body."""
    response = client.head("/health")
    assert (response.status_code, response.content) == (200, b"")


UPGRADE = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA")


@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_an_upgrade_is_not_heard(shared: Running, step: int) -> None:
    """A client that would rather speak HTTP/2 is answered in HTTP/1.1, its body whole, however it arrives; so is the next."""
    sent = tokenize("upgrade me", *UPGRADE) + tokenize("then me", *UPGRADE) + tokenize("and me", b"connection: close")
    with connect(shared) as raw:
        for start in range(0, len(sent), step):
            raw.sendall(sent[start : start + step])
        answers = read_all(raw)
    assert answers.count(b"HTTP/1.1 200 OK") == 3
    assert [b'"char_count":%d' % count in answers for count in (10, 7, 6)] == [True] * 3


def test_an_upgrade_with_a_body_in_chunks(shared: Running) -> None:
    """The framing is the request's own."""
    body = json.dumps({"model": MODEL, "prompt": "in chunks"}).encode()
    head = b"\r\n".join(
        [b"POST /v1/tokenize HTTP/1.1", b"host: x", b"content-type: application/json", *UPGRADE,
         b"transfer-encoding: chunked", b"", b""]
    )  # fmt: skip
    with connect(shared) as raw:
        raw.sendall(head + b"%x\r\n%b\r\n" % (len(body), body))
        raw.sendall(b"0\r\n\r\nGET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answers = read_all(raw)
    assert answers.count(b"HTTP/1.1 200 OK") == 2
    assert b'"char_count":9' in answers


def test_a_websocket_is_refused_as_what_it_asks_for(shared: Running) -> None:
    """There is none here: the path and method are what is answered."""
    with connect(shared) as raw:
        raw.sendall(
            b"GET /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )
        answers = read_all(raw)
    assert (answers.count(b"HTTP/1.1 405"), answers.count(b"HTTP/1.1 200")) == (1, 1)
