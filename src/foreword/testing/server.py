"""A gateway behind a real socket, on a thread of its own, with fakes for tokenizer, template and worker."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from foreword.config import Config
from foreword.gateway.app import Gateway, create_app
from foreword.gateway.server import Server
from foreword.gateway.tokenizers import LoadedTokenizer, TokenizerRegistry
from foreword.testing.chat import ByteTokenizer, ChatMLTemplate
from foreword.testing.workers import FakeWorker
from foreword.tokens.exact_cache import L0Config
from foreword.tokens.token_cache import CachedTokenizer

MODEL = "fake-model"


def load_bytes(source: str, name: str) -> LoadedTokenizer:
    """A byte tokenizer under a name, cached in L0."""
    tokenizer = CachedTokenizer(ByteTokenizer(name), l0=L0Config())
    return LoadedTokenizer(name, source, tokenizer, ChatMLTemplate())


@dataclass
class Running:
    """A server on its own thread."""

    gateway: Gateway
    server: Server
    workers: Sequence[FakeWorker]
    thread: threading.Thread = field(init=False)
    port: int = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def worker(self) -> FakeWorker:
        """The first worker."""
        return self.workers[0]

    def start(self) -> None:
        """Serve, and wait until the port is open."""
        started = threading.Event()
        original = self.server.startup

        async def startup(sockets: list[socket.socket] | None = None) -> None:
            await original(sockets)
            started.set()

        self.server.startup = startup  # type: ignore[method-assign]
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        if not started.wait(10):
            raise RuntimeError("the server did not start")
        self.port = self.server.port

    def stop(self) -> None:
        """Stop at once."""
        self.gateway.abort()
        self.server.should_exit = True
        self.thread.join(10)
        if self.thread.is_alive():
            raise RuntimeError("the server did not stop")


@contextlib.contextmanager
def serve(workers: Sequence[FakeWorker] | None = None, **settings: Any) -> Iterator[Running]:
    """A running gateway with these settings."""
    workers = [FakeWorker(answer=b"Paris, of course.")] if workers is None else workers
    config = replace(Config(port=0, tokenizer_cache_enable_l0=True, log_level="error"), **settings)
    registry = TokenizerRegistry([load_bytes("here", MODEL)], load=load_bytes, limit=config.max_tokenizers)
    gateway = create_app(config, registry, workers)
    running = Running(gateway, Server(gateway), workers)
    running.start()
    try:
        yield running
    finally:
        running.stop()
