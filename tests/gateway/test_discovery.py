"""Workers found in a file and in Kubernetes, and a fleet kept equal to what was found."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from foreword.errors import ConfigError, WorkerError
from foreword.gateway.discovery import Discovery, FileSource, KubernetesSource, parse_source
from foreword.gateway.fleet import Fleet
from foreword.gateway.policies import CacheAware
from foreword.testing.workers import FakeWorker


def make(url: str) -> FakeWorker:
    """A worker by its URL; one URL is refused."""
    if "bad" in url:
        raise ConfigError("no such URL")
    return FakeWorker(url)


def names(fleet: Fleet) -> set[str]:
    """Who is in the fleet."""
    return {worker.name for worker in fleet.statistics()}


async def test_a_file_is_followed(tmp_path: Path) -> None:
    """Lines come and go; comments are none; a wrong line leaves the others; an unreadable file changes nothing."""
    path = tmp_path / "workers.txt"
    path.write_text("http://a:1  # the first\n\n# none\nhttp://b:1\nhttp://bad\n")
    fleet = Fleet(CacheAware(), [FakeWorker("by hand")])
    discovery = Discovery(fleet, FileSource(path), make)
    await discovery.look()
    assert names(fleet) == {"by hand", "http://a:1", "http://b:1"}
    path.write_text("http://b:1\nhttp://c:1\n")
    await discovery.look()
    assert names(fleet) == {"by hand", "http://b:1", "http://c:1"}
    path.unlink()
    await discovery.look()
    assert names(fleet) == {"by hand", "http://b:1", "http://c:1"}


async def test_a_worker_removed_by_hand_is_not_fought_over(tmp_path: Path) -> None:
    """When it then leaves the source too, nothing breaks."""
    path = tmp_path / "workers.txt"
    path.write_text("http://a:1\n")
    fleet = Fleet(CacheAware())
    discovery = Discovery(fleet, FileSource(path), make)
    await discovery.look()
    await fleet.remove("http://a:1")
    path.write_text("")
    await discovery.look()
    assert names(fleet) == set()


async def test_one_line_that_is_wrong_in_any_way_leaves_the_others(tmp_path: Path) -> None:
    """A URL that cannot be read, ranks that are none, a client whose making or starting fails: each costs its own worker."""

    class Unstartable(FakeWorker):
        """Fails in a way nobody foresaw."""

        async def start(self) -> None:
            """Fails."""
            raise UnicodeError("label too long")

    path = tmp_path / "workers.txt"
    path.write_text("http://[::1\nhttp://x?dp-size=none\nhttp://broken:1\nhttp://unstartable:1\nhttp://a:1\n")
    fleet = Fleet(CacheAware())

    def make_or_fail(url: str) -> FakeWorker:
        if "broken" in url:
            raise RuntimeError("broken")
        return Unstartable(url) if "unstartable" in url else FakeWorker(url)

    discovery = Discovery(fleet, FileSource(path), make_or_fail)
    for _ in range(2):
        await discovery.look()
        assert names(fleet) == {"http://a:1"}


async def test_looking_goes_on_after_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a source raises, the next look comes."""
    monkeypatch.setattr("foreword.gateway.discovery.POLL_SECONDS", 0.0)
    looks = 0

    class Faulty:
        """Fails once in a way nobody foresaw."""

        async def list_urls(self) -> set[str]:
            """Fails, then lists."""
            nonlocal looks
            looks += 1
            if looks == 1:
                raise RuntimeError("a fault")
            return {"http://a:1"}

    fleet = Fleet(CacheAware())
    task = asyncio.create_task(Discovery(fleet, Faulty(), make).run())
    async with asyncio.timeout(5):
        while not names(fleet):
            await asyncio.sleep(0.01)
    task.cancel()


def test_a_list_of_workers_has_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without end is not read to its end."""
    monkeypatch.setattr("foreword.gateway.discovery.MAX_BODY", 10)
    path = tmp_path / "workers.txt"
    path.write_text("http://a:1\nhttp://b:1\n")
    with pytest.raises(WorkerError, match="over 10 bytes"):
        asyncio.run(FileSource(path).list_urls())


class ApiServer:
    """The part of the Kubernetes API that lists EndpointSlices."""

    def __init__(self) -> None:
        self.slices: list[Any] = []
        self.status = 200
        self.seen: list[tuple[str, str, str]] = []
        self.url = ""

    async def list(self, request: web.Request) -> web.Response:
        """The slices there are."""
        self.seen.append((request.path, request.query["labelSelector"], request.headers["Authorization"]))
        return web.json_response({"kind": "EndpointSliceList", "items": self.slices}, status=self.status)


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    """A running API server."""
    made = ApiServer()
    app = web.Application()
    app.router.add_get("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices", made.list)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    made.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
    yield made
    await runner.cleanup()


def endpoint(address: str, **conditions: bool) -> dict[str, Any]:
    """One endpoint of a slice."""
    return {"addresses": [address], "conditions": conditions}


async def test_ready_endpoints_of_a_service_are_workers(api: ApiServer, tmp_path: Path) -> None:
    """Over all slices; those not ready or going away are left out; the token is sent as it is now."""
    (tmp_path / "token").write_text("t1\n")
    api.slices = [
        {
            "endpoints": [
                endpoint("10.0.0.1", ready=True),
                endpoint("10.0.0.2", ready=False),
                {"addresses": ["10.0.0.3"]},
            ]
        },
        {"endpoints": [endpoint("fd00::4", ready=True), endpoint("10.0.0.5", ready=True, terminating=True)]},
        {"endpoints": None},
    ]
    source = KubernetesSource("llm", "vllm", 8000, scheme="grpc", api=api.url, account=tmp_path)
    assert await source.list_urls() == {"grpc://10.0.0.1:8000", "grpc://10.0.0.3:8000", "grpc://[fd00::4]:8000"}
    (tmp_path / "token").write_text("t2")
    await source.list_urls()
    path = "/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices"
    selector = "kubernetes.io/service-name=vllm"
    assert api.seen == [(path, selector, "Bearer t1"), (path, selector, "Bearer t2")]


async def test_pods_that_go_are_drained_and_an_api_that_fails_changes_nothing(api: ApiServer, tmp_path: Path) -> None:
    """The fleet follows the service."""
    (tmp_path / "token").write_text("t")
    fleet = Fleet(CacheAware())
    discovery = Discovery(fleet, KubernetesSource("llm", "vllm", 80, api=api.url, account=tmp_path), make)
    api.slices = [{"endpoints": [endpoint("10.0.0.1"), endpoint("10.0.0.2")]}]
    await discovery.look()
    assert names(fleet) == {"http://10.0.0.1:80", "http://10.0.0.2:80"}
    api.status = 500
    await discovery.look()
    assert names(fleet) == {"http://10.0.0.1:80", "http://10.0.0.2:80"}
    api.status, api.slices = 200, [{"endpoints": [endpoint("10.0.0.2")]}]
    await discovery.look()
    assert names(fleet) == {"http://10.0.0.2:80"}


async def test_no_api_server_is_a_worker_error(tmp_path: Path) -> None:
    """Without a token, or with nobody listening."""
    source = KubernetesSource("llm", "vllm", 80, api="http://127.0.0.1:9", account=tmp_path)
    with pytest.raises(WorkerError, match="cannot be asked"):
        await source.list_urls()
    (tmp_path / "token").write_text("t")
    with pytest.raises(WorkerError, match="cannot be asked"):
        await source.list_urls()


def test_sources_by_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, or a service with options for each worker's URL."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.9")
    assert isinstance(parse_source("file:/etc/workers.txt"), FileSource)
    source = parse_source("kubernetes://llm/vllm:8000?model=llama&scheme=grpc")
    assert isinstance(source, KubernetesSource)
    assert (source._api, source._url("10.0.0.1")) == ("https://10.0.0.9:443", "grpc://10.0.0.1:8000?model=llama")


@pytest.mark.parametrize(
    "text, message",
    [
        ("consul://x", "not by 'consul://x'"),
        ("file:", "found by file:PATH"),
        ("kubernetes://llm/vllm", "not of the form"),
        ("kubernetes://llm/vllm:0", "not of the form"),
        ("kubernetes:///vllm:80", "not of the form"),
        ("kubernetes://llm/vllm:80?nope=1", "no option 'nope'"),
        ("kubernetes://llm/vllm:80", "inside a cluster"),
    ],
)
def test_a_wrong_source_is_said_at_once(text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the gateway starts."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match=message):
        parse_source(text)
