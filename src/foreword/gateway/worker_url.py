"""Where a worker is and how to reach it, read from its URL.

    http://HOST:PORT      https://HOST:PORT       an OpenAI-compatible server
    grpc://HOST:PORT      grpcs://HOST:PORT       vLLM or SGLang behind gRPC
    zmq+ipc://PATH        ipc://PATH              a headless vLLM engine, on sockets PATH-in.sock and PATH-out.sock

Options follow as a query: ``kv-events`` and ``kv-replay`` (ZMQ endpoints of its KV events), ``handshake`` (ZMQ workers),
``model`` (the name it is served under here), ``key-file`` (sent as a bearer token), ``ca``, ``cert`` and ``cert-key`` (TLS).

A server with data-parallel ranks is as many workers, each with a cache and a queue of its own: ``dp-size=N`` stands for N URLs
with ``dp-rank=0`` to ``N-1``. Rank R's KV events are at the port given plus R, where vLLM and SGLang publish them.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

from foreword.errors import ConfigError

Transport = Literal["http", "grpc", "zmq"]

SCHEMES: dict[str, tuple[Transport, bool]] = {
    "http": ("http", False),
    "https": ("http", True),
    "grpc": ("grpc", False),
    "grpcs": ("grpc", True),
    "zmq+ipc": ("zmq", False),
    "ipc": ("zmq", False),
}
"""Scheme -> transport, and whether over TLS."""

OPTIONS = (
    "kv-events", "kv-replay", "handshake", "model", "key-file", "ca", "cert", "cert-key", "dp-size", "dp-rank",
)  # fmt: skip
MAX_RANKS = 1024
MAX_FILE_BYTES = 1 << 20
"""Of a key or certificate."""
_HOST = re.compile(
    r"(?=.{1,254}(?::|$))[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,62})(?:\.[A-Za-z0-9_-]{1,63})*\.?(?::\d*)?|\[[0-9A-Fa-f:.]+\](?::\d*)?"
)
_ENDPOINT = re.compile(r"tcp://(?:[A-Za-z0-9_.-]{1,253}|\*|\[[0-9A-Fa-f:.]+\]):(\d{1,5})|ipc:///?.{1,107}")
_KEY = re.compile(r"[!-~]{1,8192}")
DEFAULT_HANDSHAKE = "tcp://127.0.0.1:29550"
"""vLLM's default --data-parallel-rpc-port."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of PEM: authorities to trust in place of the system's, and a certificate of our own for mutual TLS."""

    ca: Path | None = None
    cert: Path | None = None
    cert_key: Path | None = None

    def read_ca(self) -> bytes | None:
        """The trusted authorities; raises ConfigError."""
        return _read(self.ca) if self.ca else None

    def read_client_pair(self) -> tuple[bytes | None, bytes | None]:
        """Private key and certificate; raises ConfigError."""
        if self.cert is None:
            return None, None
        return _read(self.cert_key or self.cert), _read(self.cert)

    def context(self) -> ssl.SSLContext:
        """For HTTP clients; raises ConfigError for files that hold no authority, certificate or key."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.cert_key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"The worker's TLS files cannot be used: {error}.") from error
        return context


@dataclass(frozen=True, slots=True)
class WorkerConnection:
    """A worker's URL, taken apart. ``name`` is the URL without its query, which may hold paths of secrets, and its rank.

    Attributes:
        address: HOST:PORT, or the PATH of ZMQ sockets.
        model: the name to serve it under, in place of the worker's own.
        api_key: sent to the worker with every request; never shown.
        dp_rank: the data-parallel rank that its requests are for; None leaves that to the server.
    """

    name: str
    transport: Transport
    address: str
    tls: Tls | None = None
    model: str = ""
    api_key: str = ""
    kv_events: str | None = None
    kv_replay: str | None = None
    handshake: str = DEFAULT_HANDSHAKE
    dp_rank: int | None = None

    def __repr__(self) -> str:
        return f"WorkerConnection({self.name!r})"

    @property
    def base_url(self) -> str:
        """Of HTTP workers, without a slash at the end."""
        return f"{'https' if self.tls else 'http'}://{self.address}"


def expand_ranks(url: str) -> list[str]:
    """A URL with ``dp-size=N`` as N URLs, one a rank; any other as it is. Raises ConfigError for a size that is none."""
    parts = _split(url)
    options = parse_qsl(parts.query, keep_blank_values=True)
    size = dict(options).get("dp-size")
    if size is None:
        return [url]
    kept = [(name, value) for name, value in options if name not in ("dp-size", "dp-rank")]
    return [
        urlunsplit(parts._replace(query=urlencode([*kept, ("dp-rank", rank)], safe="/:")))
        for rank in range(_parse_number("dp-size", size, least=1))
    ]


def parse_worker_url(url: str) -> WorkerConnection:
    """Take a worker's URL apart; raises ConfigError saying what of it is wrong."""
    parts = _split(url)
    if parts.scheme not in SCHEMES:
        raise ConfigError(
            f"A worker's URL begins with one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}, not as {url[:100]!r}.",
            url=url[:100],
        )
    if parts.username or parts.password or parts.fragment:
        raise ConfigError("A worker's URL has no user, password or fragment.", hint="Use key-file=PATH for a key.")
    transport, secure = SCHEMES[parts.scheme]
    options = _parse_options(parts.query)
    address = _parse_ipc(parts.netloc, parts.path) if transport == "zmq" else _parse_host(url, parts.netloc, parts.path)
    rank = _parse_number("dp-rank", options["dp-rank"]) if "dp-rank" in options else None
    if transport == "zmq" and {"dp-rank", "dp-size"} & set(options):
        raise ConfigError(
            "A ZMQ worker is one engine, whatever its rank.", hint="Give each rank's engine a URL of its own."
        )
    files = {name: Path(options[name]) if name in options else None for name in ("ca", "cert", "cert-key")}
    return WorkerConnection(
        name=f"{parts.scheme}://{address}" + ("" if rank is None else f"@{rank}"),
        transport=transport,
        address=address,
        tls=Tls(files["ca"], files["cert"], files["cert-key"]) if secure else None,
        model=options.get("model", ""),
        api_key=_read_key(Path(options["key-file"])) if "key-file" in options else "",
        kv_events=_offset(options.get("kv-events"), rank),
        kv_replay=_offset(options.get("kv-replay"), rank),
        handshake=options.get("handshake", DEFAULT_HANDSHAKE),
        dp_rank=rank,
    )


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"The worker's URL {url[:100]!r} cannot be read: {error}.", url=url[:100]) from error


def _offset(endpoint: str | None, rank: int | None) -> str | None:
    """Where a rank publishes: at the port plus its rank over TCP."""
    match = re.fullmatch(r"(tcp://.*:)(\d+)", endpoint or "")
    return f"{match[1]}{int(match[2]) + rank}" if match and rank else endpoint


def _parse_number(name: str, text: str, *, least: int = 0) -> int:
    if not text.isdecimal() or not least <= int(text) <= MAX_RANKS:
        raise ConfigError(
            f"A worker's {name} is {text[:40]!r}, not a number of ranks.", hint=f"Give {least} to {MAX_RANKS}."
        )
    return int(text)


def _parse_options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in OPTIONS:
            raise ConfigError(f"A worker's URL has no option {name!r}.", hint=f"Options: {', '.join(OPTIONS)}.")
    for name in ("kv-events", "kv-replay", "handshake"):
        _check_endpoint(name, options.get(name))
    if "kv-replay" in options and "kv-events" not in options:
        raise ConfigError("A worker's kv-replay is of no use without its events.", hint="Give kv-events as well.")
    return options


def _check_endpoint(name: str, endpoint: str | None) -> None:
    """Raise ConfigError unless a ZMQ socket can connect there, or bind there for a handshake."""
    if endpoint is None:
        return
    match = _ENDPOINT.fullmatch(endpoint)
    anywhere = name != "handshake" and endpoint.startswith("tcp://*")
    if match is None or anywhere or not 0 < int(match[1] or 1) < 65_536:
        raise ConfigError(
            f"A worker's {name} is {endpoint[:100]!r}, no address to connect to.", hint="Write tcp://HOST:PORT."
        )


def _parse_ipc(netloc: str, path: str) -> str:
    address = netloc + path
    if not address.startswith("/"):
        raise ConfigError(f"A ZMQ worker's path is absolute: ipc:///{address.lstrip('/')}.")
    if len(address) > 96:  # sockaddr_un holds 108 bytes, "-out.sock" included
        raise ConfigError(
            f"The socket path {address} is too long for a Unix socket.", hint="Use at most 96 characters."
        )
    return address


def _parse_host(url: str, netloc: str, path: str) -> str:
    try:
        port = urlsplit(url).port
    except ValueError as error:
        raise ConfigError(f"The worker's URL {url[:100]!r} has no usable port: {error}.") from error
    if not netloc or netloc.startswith(":"):
        raise ConfigError(f"The worker's URL {url[:100]!r} names no host.", hint="Write scheme://HOST:PORT.")
    if port == 0:
        raise ConfigError(f"The worker's URL {url[:100]!r} has no usable port: 0.", hint="Write scheme://HOST:PORT.")
    if _HOST.fullmatch(netloc) is None:
        raise ConfigError(
            f"The worker's URL {url[:100]!r} names a host that cannot be.", hint="Write scheme://HOST:PORT."
        )
    if path not in ("", "/"):
        raise ConfigError(f"The worker's URL {url[:100]!r} has a path.", hint="Give the server's root, without /v1.")
    if port is None and urlsplit(url).scheme.startswith("grpc"):
        raise ConfigError(f"The worker's URL {url[:100]!r} has no port.", hint="Write grpc://HOST:PORT.")
    return netloc


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"The worker's file {path} cannot be read: {error.strerror}.", path=str(path)) from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"The worker's file {path} is over {MAX_FILE_BYTES:,} bytes.", path=str(path))
    return content


def _read_key(path: Path) -> str:
    """A key as it stands in a header: one word of printable ASCII."""
    key = _read(path).decode("latin-1").strip()
    if _KEY.fullmatch(key) is None:
        raise ConfigError(f"The worker's key file {path} holds no key.", hint="Write the key alone on one line.")
    return key
