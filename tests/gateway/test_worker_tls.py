"""Workers over TLS: an authority of one's own, a certificate of the gateway's, and what is refused."""

import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from aiohttp import web
from smg_grpc_proto.generated import vllm_engine_pb2, vllm_engine_pb2_grpc

from foreword.errors import ConfigError, WorkerUnavailable
from foreword.gateway.grpc_worker import GrpcWorker
from foreword.gateway.http_worker import HttpWorker
from foreword.gateway.worker_url import parse_worker_url


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem; server.pem and client.pem signed by it, each with its key in the same file."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority")
    for name in ("server", "client"):
        names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        authority = ["-CA", "ca.pem", "-CAkey", "ca.key"]
        openssl(
            "req",
            "-x509",
            *new,
            *authority,
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.crt",
            "-subj",
            f"/CN={name}",
            *names,
        )
        (folder / f"{name}.pem").write_bytes(
            (folder / f"{name}.crt").read_bytes() + (folder / f"{name}.key").read_bytes()
        )
    return folder


@pytest.fixture
async def https_port(certificates: Path) -> AsyncIterator[int]:
    """An HTTPS server that demands a client certificate."""

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates / "ca.pem")
    context.load_cert_chain(certificates / "server.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    assert site._server is not None
    yield site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    await runner.cleanup()


async def start(url: str, kind: type[Any]) -> Any:
    """A started worker; it is stopped when it cannot start."""
    worker = kind(parse_worker_url(url))
    try:
        await worker.start()
    except WorkerUnavailable:
        await worker.stop()
        raise
    return worker


async def test_https_with_both_certificates(https_port: int, certificates: Path) -> None:
    """The server is checked against our authority, and shown our certificate."""
    url = f"https://127.0.0.1:{https_port}?ca={certificates}/ca.pem&cert={certificates}/client.pem"
    worker = await start(url, HttpWorker)
    assert worker.models == ("m",)
    await worker.stop()


@pytest.mark.parametrize("options", ["", "?ca={0}/ca.pem", "?cert={0}/client.pem"])
async def test_https_without_one_of_them(https_port: int, certificates: Path, options: str) -> None:
    """An unknown authority, or no certificate where one is demanded, is an unreachable worker."""
    with pytest.raises(WorkerUnavailable, match="cannot be reached"):
        await start(f"https://127.0.0.1:{https_port}" + options.format(certificates), HttpWorker)


class Engine(vllm_engine_pb2_grpc.VllmEngineServicer):  # type: ignore[misc]
    """Serves a model."""

    async def GetModelInfo(self, *_: Any) -> Any:  # noqa: N802 - the protocol's name
        """Its name."""
        return vllm_engine_pb2.GetModelInfoResponse(served_model_name="m")

    async def GetServerInfo(self, *_: Any) -> Any:  # noqa: N802
        """Nothing more."""
        return vllm_engine_pb2.GetServerInfoResponse()


async def test_grpcs(certificates: Path) -> None:
    """The same over gRPC: with both certificates it starts, without ours it does not."""
    server = grpc.aio.server()
    vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(Engine(), server)
    pair = ((certificates / "server.key").read_bytes(), (certificates / "server.crt").read_bytes())
    credentials = grpc.ssl_server_credentials([pair], (certificates / "ca.pem").read_bytes(), require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    base = f"grpcs://127.0.0.1:{port}?ca={certificates}/ca.pem"
    worker = await start(f"{base}&cert={certificates}/client.crt&cert-key={certificates}/client.key", GrpcWorker)
    assert worker.model == "m"
    await worker.stop()
    with pytest.raises(WorkerUnavailable):
        await start(base, GrpcWorker)
    await server.stop(None)


@pytest.mark.parametrize("scheme, worker", [("https", HttpWorker), ("grpcs", GrpcWorker)])
@pytest.mark.parametrize("option", ["ca", "cert"])
async def test_files_that_hold_nothing_of_tls_are_refused(
    tmp_path: Path, scheme: str, worker: Any, option: str
) -> None:
    """By name, when the worker is started: not in a library's own log at each attempt."""
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing")
    made = worker(parse_worker_url(f"{scheme}://127.0.0.1:1?{option}={wrong}"))
    with pytest.raises(ConfigError, match="TLS files cannot be used"):
        await made.start()
    await made.stop()
