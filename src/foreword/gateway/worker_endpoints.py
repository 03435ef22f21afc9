"""/v1/workers: which there are, and taking them in and out while the gateway runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict

import msgspec

from foreword.errors import ConfigError
from foreword.gateway.errors import Refusal
from foreword.gateway.exchange import Exchange
from foreword.gateway.fleet import Fleet
from foreword.gateway.member import Client, MemberStatistics
from foreword.gateway.worker_url import expand_ranks

DRAIN_SECONDS = 30.0
MAX_WORKERS = 1024


class _AddWorker(msgspec.Struct):
    url: str


_ADD = msgspec.json.Decoder(_AddWorker)


class WorkerEndpoints:
    """Lists, adds and removes workers of a fleet."""

    def __init__(self, fleet: Fleet, make: Callable[[str], Client]) -> None:
        self._fleet = fleet
        self._make = make

    async def list(self, exchange: Exchange) -> None:
        """Every worker with its state and counts."""
        await exchange.respond_json({"workers": [asdict(worker) for worker in self._fleet.statistics()]})

    async def add(self, exchange: Exchange) -> None:
        """Take a worker in: 201 whether or not it can be reached yet, its state says which. Ranks come as a list."""
        try:
            clients = [self._make(url) for url in expand_ranks(exchange.decode(_ADD).url)]
            if len(self._fleet.statistics()) + len(clients) > MAX_WORKERS:
                raise Refusal(f"There may be {MAX_WORKERS} workers at most.", status=409, code="too_many")
            added = await self._add_all(clients)
        except ConfigError as error:
            raise Refusal(str(error), param="url", code="invalid_value") from error
        rows = [asdict(worker) for worker in added]
        await exchange.respond_json(rows[0] if len(rows) == 1 else {"workers": rows}, status=201)

    async def _add_all(self, clients: Sequence[Client]) -> Sequence[MemberStatistics]:
        """Every rank of a server, or none of them; raises ConfigError."""
        added: list[MemberStatistics] = []
        try:
            for client in clients:
                added.append(await self._fleet.add(client))  # noqa: PERF401 - what was added counts when one fails
        except ConfigError:
            for worker in added:
                with contextlib.suppress(ConfigError):  # removed by another request meanwhile
                    await self._fleet.remove(worker.name)
            raise
        return added

    async def remove(self, exchange: Exchange) -> None:
        """Drain a worker and let it go; the answer comes when it has gone."""
        name = exchange.path_tail
        try:
            await self._fleet.remove(name, drain_seconds=DRAIN_SECONDS)
        except ConfigError as error:
            raise Refusal(str(error), status=404, code="not_found") from error
        await exchange.respond_json({"name": name, "deleted": True})
