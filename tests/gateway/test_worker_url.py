"""Worker URLs, taken apart or refused with a reason."""

from pathlib import Path

import pytest

from foreword.errors import ConfigError
from foreword.gateway.worker_url import expand_ranks, parse_worker_url


@pytest.mark.parametrize(
    "url, name, transport, address",
    [
        ("http://10.0.0.1:8000", "http://10.0.0.1:8000", "http", "10.0.0.1:8000"),
        ("http://vllm/", "http://vllm", "http", "vllm"),
        ("https://[::1]:8443", "https://[::1]:8443", "http", "[::1]:8443"),
        ("grpc://w-0.w.svc:50051", "grpc://w-0.w.svc:50051", "grpc", "w-0.w.svc:50051"),
        ("grpcs://w:1?ca=/etc/ca.pem", "grpcs://w:1", "grpc", "w:1"),
        ("zmq+ipc:///run/foreword/w0", "zmq+ipc:///run/foreword/w0", "zmq", "/run/foreword/w0"),
        ("ipc:///run/foreword/w0", "ipc:///run/foreword/w0", "zmq", "/run/foreword/w0"),
    ],
)
def test_every_scheme(url: str, name: str, transport: str, address: str) -> None:
    """Scheme, transport and address; the name leaves the options out."""
    connection = parse_worker_url(url)
    assert (connection.name, connection.transport, connection.address) == (name, transport, address)
    assert (connection.tls is not None) == url.startswith(("https", "grpcs"))


def test_options(tmp_path: Path) -> None:
    """Events, model, key and handshake are options; the key is read from its file and never shown."""
    key = tmp_path / "key"
    key.write_text("s3cret\n")
    connection = parse_worker_url(
        f"http://w:8000?kv-events=tcp://w:5557&kv-replay=tcp://w:5558&model=llama&key-file={key}&handshake=tcp://127.0.0.1:1"
    )
    assert (connection.kv_events, connection.kv_replay) == ("tcp://w:5557", "tcp://w:5558")
    assert (connection.model, connection.api_key, connection.handshake) == ("llama", "s3cret", "tcp://127.0.0.1:1")
    assert "s3cret" not in repr(connection)


@pytest.mark.parametrize(
    "url, message",
    [
        ("w:8000", "begins with one of"),
        ("ftp://w", "begins with one of"),
        ("http://", "names no host"),
        ("http://:80", "names no host"),
        ("http://w:99999", "no usable port"),
        ("http://w/v1", "has a path"),
        ("http://u:p@w", "no user, password"),
        ("http://w#x", "no user, password or fragment"),
        ("http://w?kv_events=x", "no option 'kv_events'"),
        ("http://w?key-file=/nonexistent", "cannot be read"),
        ("grpc://w", "has no port"),
        ("ipc://relative/path", "is absolute"),
        ("ipc:///" + "x" * 100, "too long"),
        ("http://w?dp-rank=-1", "dp-rank is '-1'"),
        ("zmq+ipc:///run/w?dp-rank=1", "one engine, whatever its rank"),
        ("http://a b:1", "a host that cannot be"),
        ("http://a..b", "a host that cannot be"),
        ("http://..", "a host that cannot be"),
        ("http://w\0x", "a host that cannot be"),
        ("http://" + "a" * 64, "a host that cannot be"),
        ("http://" + "a." * 200 + "b", "a host that cannot be"),
        ("http://w:0", "no usable port"),
        ("http://w?kv-events=w", "kv-events is 'w', no address"),
        ("http://w?kv-events=tcp://w", "no address to connect to"),
        ("http://w?kv-events=tcp://w:0", "no address to connect to"),
        ("http://w?kv-events=tcp://w:70000", "no address to connect to"),
        ("http://w?kv-events=tcp://*:5557", "no address to connect to"),
        ("http://w?kv-events=tcp://w:1&kv-replay=udp://w:2", "kv-replay is 'udp://w:2', no address"),
        ("http://w?kv-replay=tcp://w:2", "Give kv-events as well"),
        ("zmq+ipc:///run/w?handshake=x", "handshake is 'x', no address"),
        ("http://w?key-file=/dev/zero", "is over 1,048,576 bytes"),
        ("http://w?key-file=/dev/null", "holds no key"),
    ],
)
def test_what_is_wrong_is_said(url: str, message: str) -> None:
    """One sentence on what is wrong with the URL, without its secrets."""
    with pytest.raises(ConfigError, match=message) as caught:
        parse_worker_url(url)
    assert "u:p" not in str(caught.value)


@pytest.mark.parametrize("content", [b"one\ntwo", b"a key", "schl\u00fcssel".encode(), b"\0", b"x" * 9000])
def test_a_key_that_no_header_can_carry_is_refused(tmp_path: Path, content: bytes) -> None:
    """When the worker is named, not at each request; and what the file holds is not said."""
    key = tmp_path / "key"
    key.write_bytes(content)
    with pytest.raises(ConfigError, match="holds no key") as caught:
        parse_worker_url(f"http://w?key-file={key}")
    assert content.decode() not in str(caught.value)


@pytest.mark.parametrize("host", ["a_b-c", "W.example.", "10.0.0.1", "[fe80::1]", "a" * 63])
def test_hosts_that_can_be(host: str) -> None:
    """Names of containers and services, addresses of both kinds."""
    assert parse_worker_url(f"http://{host}:80").address == f"{host}:80"


def test_tls_files_that_cannot_be_used(tmp_path: Path) -> None:
    """A wrong authority file is a config error, not a traceback."""
    (tmp_path / "ca.pem").write_text("no certificate")
    tls = parse_worker_url(f"https://w?ca={tmp_path / 'ca.pem'}").tls
    assert tls is not None
    with pytest.raises(ConfigError, match="cannot be used"):
        tls.context()


def test_ranks_are_workers_of_their_own() -> None:
    """One URL for each, named apart, with events at the ports where vLLM's ranks publish them."""
    url = "http://w:8000?kv-events=tcp://w:5557&kv-replay=tcp://w:5567&dp-size=3&model=m"
    ranks = [parse_worker_url(one) for one in expand_ranks(url)]
    assert [rank.name for rank in ranks] == ["http://w:8000@0", "http://w:8000@1", "http://w:8000@2"]
    assert {rank.address for rank in ranks} == {"w:8000"}
    assert [rank.dp_rank for rank in ranks] == [0, 1, 2]
    assert [rank.kv_events for rank in ranks] == ["tcp://w:5557", "tcp://w:5558", "tcp://w:5559"]
    assert [rank.kv_replay for rank in ranks] == ["tcp://w:5567", "tcp://w:5568", "tcp://w:5569"]
    assert expand_ranks("http://w:8000?model=m") == ["http://w:8000?model=m"]
    assert parse_worker_url("http://w:8000").dp_rank is None


@pytest.mark.parametrize("size", ["0", "x", "5000", ""])
def test_a_number_of_ranks_that_is_none_is_refused(size: str) -> None:
    """Before a thousand workers come of it."""
    with pytest.raises(ConfigError, match="dp-size"):
        expand_ranks(f"http://w?dp-size={size}")
