"""What gateways may tell each other over Valkey or Redis. Nothing of it is needed for a right answer.

Distinct prefix fingerprints are counted over all gateways, in a HyperLogLog for each model and minute. When the server is
lost, the count is this gateway's own, a warning is written once, and the connection is tried again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import structlog

from foreword.errors import ConfigError
from foreword.gateway.fingerprints import DistinctFingerprints

log = structlog.get_logger()

WINDOW_MINUTES = 5
FLUSH_SECONDS = 1.0
EXCHANGE_SECONDS = 10.0
"""Seconds that one exchange may take, whatever the server sends."""
MAX_PENDING = 100_000

Sample = tuple[str, tuple[str, ...], float]


class SharedFingerprints:
    """Counts distinct fingerprints by model over all gateways that use one server, and by itself without it.

    ``add`` only notes; ``run`` sends what was noted every second and fetches the counts, so no request waits for the network.

    Args:
        client: a ``redis.asyncio.Redis``.
        local: this gateway's own counts.
        namespace: first part of every key.
        clock: seconds since the epoch, on which gateways agree.
    """

    def __init__(
        self,
        client: Any,
        local: DistinctFingerprints,
        *,
        namespace: str = "foreword",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._local = local
        self._namespace = namespace
        self._clock = clock
        self._pending: dict[tuple[str, int], set[str]] = {}
        self._counts: dict[str, float] = {}
        self._models: set[str] = set()
        self.connected = False
        self._told = False  # whether the log says how it stands

    def add(self, model: str, fingerprint: str) -> None:
        """Note one request's fingerprint."""
        self._local.add(model, fingerprint)
        self._models.add(model)
        if sum(map(len, self._pending.values())) < MAX_PENDING:
            self._pending.setdefault((model, self._minute()), set()).add(fingerprint)

    def _minute(self) -> int:
        return int(self._clock() // 60)

    def _key(self, model: str, minute: int) -> str:
        return f"{self._namespace}:prefix_fp:{model}:{minute}"

    async def run(self) -> None:
        """Exchange counts every second until cancelled."""
        while True:
            await self.exchange()
            await asyncio.sleep(FLUSH_SECONDS)

    async def exchange(self) -> None:
        """Send what was noted and fetch the counts; a lost server is noted and changes nothing else."""
        try:
            async with asyncio.timeout(EXCHANGE_SECONDS):
                await self._talk()
        except Exception as error:  # noqa: BLE001 - whatever a client library raises, requests go on
            if self.connected or not self._told:
                log.warning("shared_state.lost", error=str(error) or type(error).__name__)
            self.connected, self._counts = False, {}
        else:
            if not self.connected:
                log.info("shared_state.connected")
            self.connected = True
        self._told = True

    async def _talk(self) -> None:
        if not await self._client.ping():  # with nothing to send or count, the only word exchanged
            raise ConnectionError("what answers there is no Valkey or Redis")
        await self._flush()
        self._counts = {model: await self._count(model) for model in self._models}

    async def _flush(self) -> None:
        for (model, minute), fingerprints in list(self._pending.items()):
            key = self._key(model, minute)
            async with self._client.pipeline(transaction=False) as pipeline:
                pipeline.pfadd(key, *fingerprints)
                pipeline.expire(key, (WINDOW_MINUTES + 1) * 60)
                await pipeline.execute()
            del self._pending[model, minute]

    async def _count(self, model: str) -> float:
        minute = self._minute()
        return float(await self._client.pfcount(*(self._key(model, minute - age) for age in range(WINDOW_MINUTES))))

    def samples(self) -> Iterator[Sample]:
        """The count of each model: everybody's, or our own while there is no server."""
        if self.connected:
            for model, count in self._counts.items():
                yield "distinct_prefix_fingerprints", (model,), count
        else:
            yield from self._local.samples()

    async def close(self) -> None:
        """Let go of the connection."""
        await self._client.aclose()


def connect(url: str) -> Any:
    """A client for ``redis://`` or ``rediss://HOST:PORT/DB``; connects at first use. Raises ConfigError."""
    try:
        import redis.asyncio  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigError(
            "--redis-url needs the client library, which is not installed.", hint="Run: pip install 'foreword[redis]'."
        ) from error
    try:
        return redis.asyncio.from_url(url, socket_timeout=2.0, socket_connect_timeout=2.0)
    except ValueError as error:
        raise ConfigError(f"The --redis-url cannot be used: {error}.") from error
