"""/v1/prefix_cache: what the workers' prefix caches hold, and emptying them. For admins."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any
from urllib.parse import parse_qs

import msgspec

from foreword.core.inspection import CachedPrefix, PrefixCacheReport
from foreword.gateway.errors import Refusal
from foreword.gateway.exchange import Exchange
from foreword.gateway.fleet import Fleet
from foreword.gateway.member import Client
from foreword.gateway.protocol.common import Salt
from foreword.gateway.tokenizers import TokenizerRegistry
from foreword.gateway.workers import CachingWorker

Json = dict[str, Any]

DEFAULT_PREFIXES, MAX_PREFIXES = 10, 1000
"""Hottest prefixes shown of each worker."""

UNITS = ("blocks", "tokens", "disk_blocks")
"""What a reset counts: blocks and tokens in memory, and blocks on disk, of which many were in memory too."""


class ResetRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What to empty: everything, or what belongs to an organisation, a salt, or an organisation's salt.

    Unknown fields are refused, since a misspelt one would empty more than was meant.
    """

    organisation: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)] | None = None
    cache_salt: Salt | None = None


_DECODER = msgspec.json.Decoder(ResetRequest)


class PrefixCacheEndpoints:
    """Looks into the prefix caches of the workers that let it, and empties them."""

    def __init__(self, pool: Fleet, tokenizers: TokenizerRegistry) -> None:
        self._pool = pool
        self._tokenizers = tokenizers

    async def show(self, exchange: Exchange) -> None:
        """Usage, hit rate, evictions and the hottest prefixes, worker by worker."""
        limit = _limit(exchange)
        workers, silent = _split(self._pool)
        rows = [self._describe(worker, await caching.inspect_prefix_cache(limit)) for worker, caching in workers]
        await exchange.respond_json({"workers": rows, "not_inspectable": silent})

    async def reset(self, exchange: Exchange) -> None:
        """Empty the caches, wholly or in part, and say of how much."""
        wanted = exchange.decode(_DECODER) if exchange.body.strip() else ResetRequest()
        workers, silent = _split(self._pool)
        rows: list[Json] = []
        for worker, caching in workers:
            emptied = await caching.reset_prefix_cache(wanted.organisation, wanted.cache_salt)
            counts = zip(UNITS, (emptied.num_blocks, emptied.num_tokens, emptied.num_disk_blocks), strict=True)
            rows.append({"worker": worker.name, **dict(counts)})
        totals = {unit: sum(row[unit] for row in rows) for unit in UNITS}
        exchange.log.update(event="prefix_cache.reset", **totals)
        await exchange.respond_json({**totals, "workers": rows, "not_resettable": silent})

    def _describe(self, worker: Client, report: PrefixCacheReport) -> Json:
        statistics = report.statistics
        return {
            "worker": worker.name,
            "model": worker.model,
            "block_size": report.block_size,
            "usage": _ratio(statistics.held, statistics.num_blocks),
            "hit_rate": _ratio(statistics.hits, statistics.queries),
            **asdict(statistics),
            "disk": asdict(report.disk) if report.disk is not None else None,
            "hottest": [self._describe_prefix(worker.model, prefix) for prefix in report.hottest],
        }

    def _describe_prefix(self, model: str, prefix: CachedPrefix) -> Json:
        """The start as text; characters cut by its end are left out."""
        tokenizer = self._tokenizers.find(model).tokenizer
        text = tokenizer.decode(prefix.token_ids, skip_special_tokens=False).rstrip("\ufffd")
        return {
            "text": text,
            "tokens": prefix.num_tokens,
            "hits": prefix.num_hits,
            "organisation": prefix.organisation,
            "salted": prefix.salted,
        }


def _split(pool: Fleet) -> tuple[list[tuple[Client, CachingWorker]], list[str]]:
    """The workers that let their cache be seen, and the names of the others."""
    caching: list[tuple[Client, CachingWorker]] = [
        (worker, worker) for worker in pool.workers if isinstance(worker, CachingWorker)
    ]
    return caching, [worker.name for worker in pool.workers if not isinstance(worker, CachingWorker)]


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _limit(exchange: Exchange) -> int:
    query = parse_qs(exchange.scope.get("query_string", b"").decode("latin-1"))
    given = query.get("limit", [str(DEFAULT_PREFIXES)])[-1]
    if not (given.isascii() and given.isdigit() and int(given[:9]) <= MAX_PREFIXES):
        message = f"'limit' is {given[:50]!r}, which is no number from 0 to {MAX_PREFIXES}."
        raise Refusal(message, param="limit", code="invalid_value")
    return int(given)
