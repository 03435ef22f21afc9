"""/v1/tokenize over HTTP: Foreword against smg 1.13.0, both with both cache levels on, in one interleaved run.

Both serve the Qwen3 tokenizer on this machine with their usual middleware and logging (to /dev/null). The client is raw
sockets on one event loop; every response is read to its end, and the ids of both servers are compared before timing.
The peer lives in its own environment: ``make .venv-peers/.ready``.
"""

from __future__ import annotations

import contextlib
import json
import random
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import post_all, post_once
from benchmarks.processes import free_port, running
from benchmarks.table import Row, compare, compare_rates
from foreword.testing.material import tokenizer_path

ROOT = Path(__file__).parents[1]
PEER = "smg 1.13.0"
CONNECTIONS = 8
ROUNDS = 5
SECONDS = 1.0

IDENTICAL = ((1_000, 1.5), (10_000, 2.5), (100_000, 4.0), (1_000_000, 4.0))
"""Bytes of text in an identical body, and the ratio promised."""


@dataclass(frozen=True)
class Server:
    """A server under test and the name it gives its tokenizer."""

    port: int
    model: str

    def request(self, text: str) -> bytes:
        """A tokenize request as bytes."""
        body = json.dumps({"model": self.model, "prompt": text}).encode()
        head = b"POST /v1/tokenize HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        return head + b"content-length: %d\r\n\r\n" % len(body) + body

    def tokens(self, text: str) -> list[int]:
        """The ids it gives."""
        tokens: list[int] = json.loads(post_once(self.port, self.request(text)))["tokens"]
        return tokens

    def wait(self) -> None:
        """Until it tokenizes: the peer answers before its tokenizer is loaded."""
        for _ in range(300):
            if "tokens" in json.loads(post_once(self.port, self.request("a"))):
                return
            time.sleep(0.1)
        raise RuntimeError(f"no tokenizer was loaded at port {self.port}")


@contextlib.contextmanager
def servers() -> Iterator[tuple[Server, Server]]:
    """Foreword and the peer, both serving the same folder with both levels on."""
    folder = str(tokenizer_path("qwen3"))
    caches = ["--tokenizer-path", folder, "--tokenizer-cache-enable-l0", "--tokenizer-cache-enable-l1"]
    ours, peer = free_port(), free_port()
    smg = str(ROOT / ".venv-peers" / "bin" / "smg")
    foreword = [str(Path(sys.executable).with_name("foreword")), "serve"]
    with (
        running([*foreword, *caches, "--port", str(ours)], ours, "/liveness"),
        running(
            [
                smg,
                "launch",
                *caches,
                "--host",
                "127.0.0.1",
                "--port",
                str(peer),
                "--prometheus-port",
                str(free_port()),
            ],
            peer,
            "/liveness",
        ),
    ):
        with urllib.request.urlopen(f"http://127.0.0.1:{ours}/v1/tokenizers") as answer:
            name = json.load(answer)["tokenizers"][0]["name"]
        pair = Server(ours, name), Server(peer, folder)
        for server in pair:
            server.wait()
        yield pair


_WORDS = (ROOT / "docs" / "glossary.md").read_text().split()


def prose(size: int, seed: int) -> str:
    """Words in a random order, ``size`` characters of them: no two seeds share a beginning."""
    chooser = random.Random(seed)
    words: list[str] = [f"{seed:x}"]
    length = 0
    while length < size:
        words.append(chooser.choice(_WORDS))
        length += len(words[-1]) + 1
    return " ".join(words)[:size]


def conversation(turns: int, seed: int) -> str:
    """A chat of so many turns of about 570 characters, in ChatML."""
    said = [
        f"<|im_start|>user\n{prose(270, seed * 1000 + turn)}<|im_end|>\n"
        f"<|im_start|>assistant\n{prose(250, seed * 1000 + turn + 500)}<|im_end|>\n"
        for turn in range(turns)
    ]
    return "".join(said)


def _interleaved(
    measure: Callable[[Server, int], float], pair: tuple[Server, Server], rounds: int
) -> list[list[float]]:
    figures: list[list[float]] = [[], []]
    for number in range(rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            figures[side].append(measure(pair[side], number))
    return figures


def _rate(server: Server, requests: Sequence[bytes], seconds: float) -> float:
    """Requests a second over eight connections."""
    done, elapsed = post_all(server.port, requests, connections=CONNECTIONS, seconds=seconds)
    return done / elapsed


def _identical(pair: tuple[Server, Server], size: int, target: float) -> Row:
    text = prose(size, size)
    if pair[0].tokens(text) != pair[1].tokens(text):
        raise RuntimeError(f"the servers disagree on a text of {size} bytes")
    for server in pair:
        _rate(server, [server.request(text)], 0.3)
    ours, peer = _interleaved(lambda server, _: _rate(server, [server.request(text)], SECONDS), pair, ROUNDS)
    return compare_rates(
        f"/v1/tokenize, identical bodies of {size // 1000} KB", ours, peer, peer_name=PEER, target=target
    )


def _turn_100(server: Server, number: int) -> float:
    """Seconds that turn 100 of a fresh conversation takes when each turn before was sent; median of three."""
    times: list[float] = []
    for repeat in range(3):
        turns = conversation(100, 10 + number * 3 + repeat).split("<|im_start|>user")[1:]
        texts = ["<|im_start|>user" + "<|im_start|>user".join(turns[: turn + 1]) for turn in range(100)]
        for text in texts[:-1]:
            post_once(server.port, server.request(text))
        request = server.request(texts[-1])
        started = time.perf_counter()
        post_once(server.port, request)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _growing(pair: tuple[Server, Server]) -> Row:
    text = conversation(100, 9)
    if pair[0].tokens(text) != pair[1].tokens(text):
        raise RuntimeError("the servers disagree on a conversation")
    ours, peer = _interleaved(_turn_100, pair, ROUNDS)
    return compare(
        "/v1/tokenize, turn 100 of a conversation", ours, peer, peer_name=PEER, target=1.5, unit="us", scale=1e6
    )


def _never_seen(pair: tuple[Server, Server]) -> Row:
    count = 400

    def measure(server: Server, number: int) -> float:
        requests = [server.request(prose(20_000, 10_000_000 + number * count + n)) for n in range(count)]
        done, elapsed = post_all(server.port, requests, connections=CONNECTIONS)
        return done / elapsed

    for server in pair:
        measure(server, ROUNDS)  # warms the encoders, on texts of no other round
    ours, peer = _interleaved(measure, pair, ROUNDS)
    return compare_rates("/v1/tokenize, never-seen bodies of 20 KB", ours, peer, peer_name=PEER, target=2.0)


def rows() -> list[Row]:
    """Every promise about /v1/tokenize."""
    with servers() as pair:
        identical = [_identical(pair, size, target) for size, target in IDENTICAL]
        return [*identical, _growing(pair), _never_seen(pair)]
