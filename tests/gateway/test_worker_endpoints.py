"""/v1/workers: listed, added and removed while the gateway runs."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.gateway.test_forwarding import KEYS, Upstream, body, post, upstream

from foreword.errors import ConfigError
from foreword.testing.server import Running, serve


@pytest.fixture
def up() -> Iterator[Upstream]:
    """One upstream."""
    with upstream() as made:
        yield made


@pytest.fixture
def gateway(up: Upstream) -> Iterator[Running]:
    """A gateway in front of it, beside its own fake worker."""
    with serve(worker_urls=(up.url,)) as running:
        yield running


def test_workers_are_listed_added_and_removed(up: Upstream, gateway: Running) -> None:
    """The admin's view: state, counts, what is wrong with a URL."""
    names = [worker["name"] for worker in httpx.get(gateway.url + "/v1/workers").json()["workers"]]
    assert names == ["fake", up.url]
    for url, message in [("gopher://x", "begins with one of"), (up.url, "in the fleet already")]:
        refused = httpx.post(gateway.url + "/v1/workers", json={"url": url})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "url")
        assert message in refused.json()["error"]["message"]
    assert httpx.delete(gateway.url + "/v1/workers/nobody").status_code == 404


def test_ranks_are_added_together_or_not_at_all(up: Upstream, gateway: Running) -> None:
    """One that is there already takes back those before it: a refused addition changes nothing."""
    before = httpx.get(gateway.url + "/v1/workers").json()
    httpx.post(gateway.url + "/v1/workers", json={"url": f"{up.url}?dp-rank=1"})
    refused = httpx.post(gateway.url + "/v1/workers", json={"url": f"{up.url}?dp-size=3"})
    names = [worker["name"] for worker in httpx.get(gateway.url + "/v1/workers").json()["workers"]]
    assert (refused.status_code, "already" in refused.text) == (400, True)
    assert names == [*(worker["name"] for worker in before["workers"]), f"{up.url}@1"]


def test_a_worker_whose_files_cannot_be_used_is_not_added(up: Upstream, gateway: Running) -> None:
    """It is refused as often as it is asked for, and listed nowhere."""
    before = httpx.get(gateway.url + "/v1/workers").json()
    for _ in range(2):
        url = up.url.replace("http", "https") + "?ca=/nonexistent"
        refused = httpx.post(gateway.url + "/v1/workers", json={"url": url})
        assert (refused.status_code, "cannot be used" in refused.text) == (400, True)
    assert httpx.get(gateway.url + "/v1/workers").json() == before


def test_metrics_name_every_worker(up: Upstream, gateway: Running) -> None:
    """Health and retries show."""
    post(gateway, body())
    text = httpx.get(gateway.url + "/metrics").text
    assert f'foreword_worker_healthy{{model="up",worker="{up.url}"}} 1.0' in text
    assert "foreword_worker_retries_total 0.0" in text


def test_grpc_workers_are_refused_where_there_are_organisations(tmp_path: Path) -> None:
    """There is no salt over gRPC: the server does not start, and says why and what would do."""
    keys = tmp_path / "keys"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    with (
        pytest.raises(ConfigError, match="gRPC carries no cache salt"),
        serve(worker_urls=("grpc://127.0.0.1:1",), api_keys=keys),
    ):
        pass
