"""OpenAI-compatible servers: requests and answers pass through byte for byte.

No text is tokenised here and no body rewritten; what must differ for the worker was spliced in before. The client's own
headers go on, but for those of the connection and the client's key, in whose place the worker's key is sent.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Any, Protocol

import aiohttp
import msgspec

from foreword.errors import WorkerError, WorkerUnavailable
from foreword.gateway.worker_url import WorkerConnection
from foreword.generation import WorkerStatistics

Headers = tuple[tuple[bytes, bytes], ...]

CONNECTION_HEADERS = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"date", b"server"}
    | {b"proxy-authenticate", b"proxy-authorization", b"x-request-id"}
)
"""Headers of an answer that belong to one connection or server, and end here."""
HOP_BY_HOP = (CONNECTION_HEADERS - {b"x-request-id"}) | {
    b"host",
    b"content-length",
    b"authorization",
    b"x-api-key",
    b"expect",
}
"""Headers of a request that end here: those of the connection, and the client's own key."""

CONNECT_TIMEOUT = 5.0
HEALTH_TIMEOUT = 5.0
RETRY_STATUSES = frozenset({429, 502, 503, 504})
"""Answers by which a worker says that another should take the request."""

DP_RANK = "X-data-parallel-rank"
"""The header by which a vLLM server is told which of its engines a request is for."""

_METRIC = re.compile(
    rb"^(?:vllm|sglang):(num_requests_running|num_requests_waiting|kv_cache_usage_perc|gpu_cache_usage_perc|"
    rb"num_running_reqs|num_queue_reqs|token_usage)(?:\{([^}]*)\})? ([0-9.eE+-]+)",
    re.MULTILINE,
)
_RANK_LABEL = re.compile(rb'(?:^|,)(?:engine|dp_rank)="(\d+)"')


class ProxyResponse(Protocol):
    """A worker's answer being passed on. Whoever has it reads it to its end or closes it."""

    status: int
    headers: Headers

    async def read_chunk(self) -> bytes:
        """The next bytes of the body; empty at its end. Raises WorkerError when the worker breaks off."""

    def close(self) -> None:
        """Let go: before the end of the body that drops the connection, which aborts the request at the worker."""


class _HttpResponse:
    """An answer of aiohttp's as a ProxyResponse."""

    def __init__(self, worker: str, response: aiohttp.ClientResponse) -> None:
        self._worker = worker
        self._response = response
        self.status = response.status
        self.headers = tuple(
            (name, value) for name, value in response.raw_headers if name.lower() not in CONNECTION_HEADERS
        )

    async def read_chunk(self) -> bytes:
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError, RuntimeError) as error:  # RuntimeError: closed from this side
            raise WorkerError(f"The worker {self._worker} broke off its answer.") from error

    def close(self) -> None:
        self._response.close()  # keeps the connection when the body was read to its end


class HttpWorker:
    """An OpenAI-compatible server, reached over kept-alive connections."""

    def __init__(self, connection: WorkerConnection) -> None:
        self.connection = connection
        self.name = connection.name
        self.models: tuple[str, ...] = ()
        self.max_model_len = 0
        self.adapters: frozenset[str] = frozenset()
        self._statistics = WorkerStatistics()
        self._session: aiohttp.ClientSession | None = None

    @property
    def model(self) -> str:
        """The first model it serves; empty before ``start``."""
        return self.models[0] if self.models else self.connection.model

    async def start(self) -> None:
        """Connect and learn which models it serves; raises WorkerUnavailable."""
        if self._session is None:
            self._session = self._make_session()
        answer = await self._get_json("/v1/models")
        try:
            rows = answer["data"]
            self.models = (self.connection.model,) if self.connection.model else tuple(row["id"] for row in rows)
            self.adapters = frozenset(row["id"] for row in rows if row.get("parent"))
            self.max_model_len = max((row.get("max_model_len") or 0 for row in rows), default=0)
        except (KeyError, TypeError, AttributeError) as error:
            raise WorkerUnavailable(f"The worker {self.name} has no list of models at /v1/models.") from error

    def _make_session(self) -> aiohttp.ClientSession:
        tls = self.connection.tls
        connector = aiohttp.TCPConnector(
            limit=0, ssl=tls.context() if tls else True, keepalive_timeout=30, enable_cleanup_closed=False
        )
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)
        return aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        )

    async def stop(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _require_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise WorkerUnavailable(f"The worker {self.name} is not connected.", retry_after=1)
        return self._session

    async def forward(
        self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> ProxyResponse:
        """Send a request on and return its answer as soon as the head is there.

        Raises:
            WorkerUnavailable: the worker could not be reached or sent the request away (429, 502, 503, 504).
            WorkerError: the connection broke before the head came, or the answer is a redirect.
        """
        session = self._require_session()
        try:
            response = await session.request(
                method,
                self.connection.base_url + path,
                data=body or None,
                headers=self._headers(headers),
                allow_redirects=False,
            )
        except aiohttp.ClientConnectorError as error:
            raise WorkerUnavailable(f"The worker {self.name} cannot be reached.", retry_after=1) from error
        except (aiohttp.ClientError, OSError, RuntimeError) as error:  # RuntimeError: the session was closed
            raise WorkerError(
                f"The worker {self.name} broke the connection: {error or type(error).__name__}."
            ) from error
        if response.status in RETRY_STATUSES:
            response.close()
            message = f"The worker {self.name} turned the request away with status {response.status}."
            raise WorkerUnavailable(message, retry_after=_retry_after(response), status=response.status)
        if 300 <= response.status < 400:  # followed by the client, it would lead past the gateway
            response.close()
            raise WorkerError(f"The worker {self.name} answered with a redirect (status {response.status}).")
        return _HttpResponse(self.name, response)

    def _headers(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
        passed = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in headers if n.lower() not in HOP_BY_HOP]
        if self.connection.dp_rank is not None:
            passed = [(name, value) for name, value in passed if name.lower() != DP_RANK.lower()]
            passed.append((DP_RANK, str(self.connection.dp_rank)))
        if self.connection.api_key:
            passed.append(("Authorization", f"Bearer {self.connection.api_key}"))
        return passed

    async def check_health(self) -> bool:
        """Whether a request would be taken now; reads the load off the worker's metrics on the way."""
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT):
                if not self.models:
                    await self.start()
                status, _ = await self._get("/health")
                if status == 200:
                    await self._refresh_load()
                return status == 200
        except (WorkerError, TimeoutError):
            return False

    async def _refresh_load(self) -> None:
        status, text = await self._get("/metrics")
        if status == 200:
            self._statistics = read_load(text, self.connection.dp_rank)

    async def _get(self, path: str) -> tuple[int, bytes]:
        session = self._require_session()
        try:
            async with session.get(self.connection.base_url + path, headers=self._headers(())) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            raise WorkerUnavailable(
                f"The worker {self.name} cannot be reached: {error or type(error).__name__}."
            ) from error

    async def _get_json(self, path: str) -> Any:
        status, text = await self._get(path)
        if status != 200:
            hint = "Give its key with key-file=PATH in its URL." if status in (401, 403) else ""
            raise WorkerUnavailable(f"The worker {self.name} answered {path} with status {status}.", hint=hint)
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise WorkerUnavailable(
                f"The worker {self.name} answered {path} with something that is not JSON."
            ) from error

    def statistics(self) -> WorkerStatistics:
        """How busy the worker's metrics said it was when last read."""
        return self._statistics


def read_load(metrics: bytes, rank: int | None = None) -> WorkerStatistics:
    """Requests and memory from vLLM's or SGLang's metrics text, of one rank or all; zeros where they are missing."""
    found: dict[bytes, float] = {}
    for name, labels, value in _METRIC.findall(metrics):
        label = _RANK_LABEL.search(labels)
        if rank is None or label is None or int(label[1]) == rank:
            found[name] = found.get(name, 0.0) + float(value)

    def first(*names: bytes) -> float:
        return next((found[name] for name in names if name in found), 0.0)

    return WorkerStatistics(
        int(first(b"num_requests_running", b"num_running_reqs")),
        int(first(b"num_requests_waiting", b"num_queue_reqs")),
        first(b"kv_cache_usage_perc", b"gpu_cache_usage_perc", b"token_usage"),
    )


def _retry_after(response: aiohttp.ClientResponse) -> float:
    value = response.headers.get("Retry-After", "")
    return min(float(value), 3600.0) if re.fullmatch(r"\d+(\.\d+)?", value) else 1.0
