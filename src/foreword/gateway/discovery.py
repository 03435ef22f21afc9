"""Finding workers: a file of URLs, or the ready endpoints of a Kubernetes service, looked at again and again.

file:/etc/foreword/workers.txt                      one URL a line, # for comments
kubernetes://NAMESPACE/SERVICE:PORT                 the service's ready pods, as http://POD-ADDRESS:PORT
kubernetes://NAMESPACE/SERVICE:PORT?scheme=grpc     the same over gRPC; other options go into each worker's URL
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import aiohttp
import msgspec
import structlog

from foreword.errors import ConfigError, ForewordError, WorkerError
from foreword.gateway.fleet import Fleet
from foreword.gateway.member import Client
from foreword.gateway.worker_url import expand_ranks, parse_worker_url

log = structlog.get_logger()

POLL_SECONDS = 5.0
DRAIN_SECONDS = 30.0
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MAX_BODY = 16 << 20


class Source(Protocol):
    """Somewhere that workers are listed."""

    async def list_urls(self) -> set[str]:
        """The URLs of the workers there are now; raises WorkerError when they cannot be read."""


class FileSource:
    """A file with one URL a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def list_urls(self) -> set[str]:
        """The lines that are neither empty nor comments."""
        try:
            text = await asyncio.to_thread(self._read)
        except (OSError, ValueError) as error:
            raise WorkerError(f"The list of workers {self._path} cannot be read: {error}.") from error
        lines = (line.partition("#")[0].strip() for line in text.splitlines())
        return {line for line in lines if line}

    def _read(self) -> str:
        with self._path.open("rb") as file:
            content = file.read(MAX_BODY + 1)
        if len(content) > MAX_BODY:
            raise ValueError(f"it is over {MAX_BODY:,} bytes")
        return content.decode()


class KubernetesSource:
    """The ready endpoints of a service, from the API server's EndpointSlices.

    Needs leave to list ``endpointslices`` in the namespace; the token is read anew each time, since it is rotated.
    """

    def __init__(
        self,
        namespace: str,
        service: str,
        port: int,
        *,
        scheme: str = "http",
        options: str = "",
        api: str | None = None,
        account: Path = SERVICE_ACCOUNT,
    ) -> None:
        self._namespace, self._service, self._port = namespace, service, port
        self._scheme, self._options = scheme, options
        self._api = api or _api_from_environment()
        self._account = account

    async def list_urls(self) -> set[str]:
        """One URL for each address of each ready endpoint."""
        slices = await self._get(
            f"/apis/discovery.k8s.io/v1/namespaces/{quote(self._namespace)}/endpointslices"
            f"?labelSelector=kubernetes.io%2Fservice-name%3D{quote(self._service)}"
        )
        try:
            return {self._url(address) for item in slices["items"] for address in _ready_addresses(item)}
        except (KeyError, TypeError, AttributeError) as error:
            raise WorkerError(
                "The Kubernetes API answered with something that is no list of EndpointSlices."
            ) from error

    def _url(self, address: str) -> str:
        host = f"[{address}]" if ":" in address else address
        return f"{self._scheme}://{host}:{self._port}" + (f"?{self._options}" if self._options else "")

    async def _get(self, path: str) -> Any:
        try:
            token = (self._account / "token").read_text().strip()
            headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
            timeout = aiohttp.ClientTimeout(total=10)
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(self._api + path, headers=headers, ssl=self._tls()) as response,
            ):
                body = await response.content.read(MAX_BODY)
                if response.status != 200:
                    raise WorkerError(f"The Kubernetes API answered {path} with status {response.status}.")
                return msgspec.json.decode(body)
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError) as error:
            raise WorkerError(
                f"The Kubernetes API cannot be asked for workers: {error or type(error).__name__}."
            ) from error

    def _tls(self) -> ssl.SSLContext | bool:
        authority = self._account / "ca.crt"
        return (
            ssl.create_default_context(cafile=authority)
            if self._api.startswith("https") and authority.exists()
            else True
        )


def _ready_addresses(item: Any) -> Iterable[str]:
    """Of one slice; an endpoint that says nothing of its readiness is ready, by the API's rule."""
    for endpoint in item.get("endpoints") or ():
        conditions = endpoint.get("conditions") or {}
        if conditions.get("ready") is not False and not conditions.get("terminating"):
            yield from endpoint["addresses"]


def _api_from_environment() -> str:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if host is None:
        raise ConfigError(
            "Kubernetes discovery works inside a cluster: KUBERNETES_SERVICE_HOST is not set.",
            hint="Outside of one, list the workers in a file and use file:PATH.",
        )
    return f"https://{f'[{host}]' if ':' in host else host}:{port}"


def parse_source(text: str) -> Source:
    """The source that a ``--worker-discovery`` names; raises ConfigError."""
    parts = urlsplit(text)
    if parts.scheme == "file" and parts.path:
        return FileSource(Path(parts.path))
    if parts.scheme == "kubernetes":
        return _parse_kubernetes(text)
    raise ConfigError(
        f"Workers are found by file:PATH or kubernetes://NAMESPACE/SERVICE:PORT, not by {text[:100]!r}.",
        source=text[:100],
    )


def _parse_kubernetes(text: str) -> KubernetesSource:
    parts = urlsplit(text)
    service, _, port = parts.path.strip("/").partition(":")
    options = dict(parse_qsl(parts.query))
    scheme = options.pop("scheme", "http")
    if not (parts.netloc and service and port.isdigit() and 0 < int(port) < 65_536):
        raise ConfigError(f"{text[:100]!r} is not of the form kubernetes://NAMESPACE/SERVICE:PORT.", source=text[:100])
    source = urlencode(options, safe="/:")
    parse_worker_url(f"{scheme}://host:{port}?{source}")  # a wrong option is said now, not at the first pod
    return KubernetesSource(parts.netloc, service, int(port), scheme=scheme, options=source)


class Discovery:
    """Keeps a fleet's discovered workers equal to a source. Workers that were given by hand are left alone."""

    def __init__(self, fleet: Fleet, source: Source, make: Callable[[str], Client]) -> None:
        self._fleet = fleet
        self._source = source
        self._make = make
        self._known: dict[str, str] = {}  # URL -> worker's name

    async def run(self) -> None:
        """Look, again and again, until cancelled."""
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("discovery.fault")
            await asyncio.sleep(POLL_SECONDS)

    async def look(self) -> None:
        """Look once. A source that cannot be read changes nothing: the workers that are known go on."""
        try:
            urls = {one for url in await self._source.list_urls() for one in self._ranks(url)}
        except ForewordError as error:
            log.warning("discovery.failed", error=str(error))
            return
        gone = [self._known.pop(url) for url in list(self._known) if url not in urls]
        await asyncio.gather(*(self._add(url) for url in sorted(urls - set(self._known))), *map(self._remove, gone))

    def _ranks(self, url: str) -> list[str]:
        try:
            return expand_ranks(url)
        except ConfigError as error:
            self._refuse(url, error)
            return []

    def _refuse(self, url: str, error: ConfigError) -> None:
        log.warning("discovery.refused", url=url.partition("?")[0][:200], error=str(error))

    async def _add(self, url: str) -> None:
        try:
            client = self._make(url)
            await self._fleet.add(client)
        except ConfigError as error:
            self._refuse(url, error)
        except Exception:  # one worker's fault is not the others'
            log.exception("discovery.fault", url=url.partition("?")[0][:200])
        else:
            self._known[url] = client.name

    async def _remove(self, name: str) -> None:
        try:
            await self._fleet.remove(name, drain_seconds=DRAIN_SECONDS)
        except ConfigError:
            log.info("discovery.gone_already", worker=name)
