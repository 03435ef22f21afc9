"""What the gateway says about prefixes: GET /v1/seams and GET /v1/fingerprints, and the headers of a response."""

from __future__ import annotations

from dataclasses import asdict
from urllib.parse import parse_qs

from foreword.diagnose.ledger import FingerprintLedger
from foreword.diagnose.verdicts import SeamRow, SeamWatch
from foreword.gateway.errors import Refusal
from foreword.gateway.exchange import Exchange

MAX_ROWS = 1000


def seam_headers(row: SeamRow) -> list[tuple[bytes, bytes]]:
    """The response headers of a verdict."""
    headers = [(b"x-foreword-shared-tokens", b"%d" % row.shared_tokens)]
    if row.seam is not None:
        headers += [(b"x-foreword-seam", b"%d" % row.seam), (b"x-foreword-cause", row.code.encode())]
    return headers


class SeamEndpoints:
    """Verdicts and fingerprints of this process's requests. An organisation's key sees nothing here: an admin's does."""

    def __init__(self, watch: SeamWatch, ledger: FingerprintLedger) -> None:
        self._watch = watch
        self._ledger = ledger

    async def seams(self, exchange: Exchange) -> None:
        """The last verdicts, oldest first; ``after`` and ``limit`` page through them, ``last`` is the newest's number."""
        query = parse_qs(exchange.scope.get("query_string", b"").decode("latin-1"))
        rows = self._watch.rows(_number(query, "after", 0), min(_number(query, "limit", 100), MAX_ROWS))
        await exchange.respond_json(
            {"object": "list", "last": self._watch.newest, "data": [asdict(row) for row in rows]}
        )

    async def fingerprints(self, exchange: Exchange) -> None:
        """Distinct fingerprints by lane, five-minute window and segment, and when a segment began to move."""
        lanes = [
            {
                "lane": lane,
                "windows": [
                    {"start": start, "distinct": counts} for start, counts in self._ledger.counts(lane).items()
                ],
                "onsets": [{**asdict(onset), "text": str(onset)} for onset in self._ledger.onsets(lane)],
            }
            for lane in self._ledger.lanes()
        ]
        await exchange.respond_json({"object": "list", "window_seconds": self._ledger.window, "data": lanes})


def _number(query: dict[str, list[str]], name: str, default: int) -> int:
    text = query.get(name, [str(default)])[-1]
    if not text.isdigit() or len(text) > 18:
        raise Refusal(f"{name!r} is {text[:40]!r}, not a number.", param=name, code="invalid_value")
    return int(text)
