"""Metrics: names to the letter, values that add up, and dashboards and alerts that ask for what there is."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from foreword.diagnose.fingerprint import fingerprint_ids
from foreword.gateway.fingerprints import DistinctFingerprints
from foreword.gateway.metrics import DEFINITIONS, Metrics
from foreword.generation import DiskTierStatistics
from foreword.testing.server import MODEL, Running, serve

DEPLOY = Path(__file__).parents[2] / "deploy"
CHAT = {"model": MODEL, "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]}


def scrape(running: Running) -> dict[str, float]:
    """Every sample by its name with labels."""
    text = httpx.get(f"{running.url}/metrics").text
    return {
        sample.name + "".join(f"[{key}={value}]" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_names_of_the_specification() -> None:
    """With the namespace ``smg`` the tokenizer cache has the specification's names, labels and counts."""
    with serve(metrics_namespace="smg") as running:
        for prompt in ("one", "one", "two", "three"):
            httpx.post(f"{running.url}/v1/tokenize", json={"model": MODEL, "prompt": prompt})
        samples = scrape(running)
    assert samples["smg_tokenizer_cache_lookups_total[layer=l0][result=hit]"] == 1
    assert samples["smg_tokenizer_cache_lookups_total[layer=l0][result=miss]"] == 3
    assert samples["smg_tokenizer_cache_lookups_total[layer=l1][result=hit]"] == 0
    assert samples["smg_tokenizer_cache_lookups_total[layer=l1][result=miss]"] == 0
    assert samples["smg_tokenizer_cache_evictions_total[layer=l0]"] == 0
    assert samples["smg_tokenizer_cache_evictions_total[layer=l1]"] == 0
    assert samples["smg_tokenizer_cache_reused_bytes_total[layer=l0]"] == 3
    assert samples["smg_tokenizer_cache_reused_bytes_total[layer=l1]"] == 0
    assert samples["smg_tokenizer_cached_tokens_total"] == 3
    assert samples["smg_tokenizer_uncached_tokens_total"] == 11


def test_every_metric_is_exposed_once_used() -> None:
    """After some traffic each metric of the table is there, and none that the table has not."""
    with serve() as running:
        for _ in range(2):
            httpx.post(f"{running.url}/v1/chat/completions", json=CHAT)
            httpx.post(f"{running.url}/v1/tokenize", json={"model": MODEL, "prompt": "a"})
        running.worker.break_after = 0
        running.worker.disk = DiskTierStatistics(*range(12))
        httpx.post(f"{running.url}/v1/chat/completions", json=CHAT)
        text = httpx.get(f"{running.url}/metrics").text
    exposed = {family.name for family in text_string_to_metric_families(text)}
    assert exposed == {f"foreword_{definition.name}" for definition in DEFINITIONS}


def test_counts_of_generation() -> None:
    """Prompt, cached and generated tokens, by model and worker, as the usage says."""
    with serve() as running:
        usages = [httpx.post(f"{running.url}/v1/chat/completions", json=CHAT).json()["usage"] for _ in range(3)]
        samples = scrape(running)
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert samples[f"foreword_prompt_tokens_total[model={MODEL}]"] == sum(usage["prompt_tokens"] for usage in usages)
    assert samples["foreword_prefix_cache_hits_total[worker=fake]"] == cached > 0
    assert samples[f"foreword_completion_tokens_total[model={MODEL}]"] == 51
    assert samples["foreword_requests_total[route=/v1/chat/completions][status=200]"] == 3
    assert samples["foreword_request_duration_seconds_count[route=/v1/chat/completions]"] == 3
    assert samples["foreword_request_duration_seconds_bucket[le=+Inf][route=/v1/chat/completions]"] == 3
    assert samples[f"foreword_time_to_first_token_seconds_count[model={MODEL}]"] == 3
    assert samples[f"foreword_distinct_prefix_fingerprints[model={MODEL}]"] == 1


def test_removed_tokenizer_leaves_its_counts() -> None:
    """Counters never fall, also when what they count is removed."""
    with serve() as running, httpx.Client(base_url=running.url) as client:
        assert client.post("/v1/tokenizers", json={"source": "x", "name": "second"}).status_code == 201
        assert client.post("/v1/tokenizers", json={"source": "x", "name": "second"}).status_code == 409
        for _ in range(2):
            client.post("/v1/tokenize", json={"model": "second", "prompt": "abc"})
        before = scrape(running)
        assert client.delete("/v1/tokenizers/second").json() == {"name": "second", "deleted": True}
        assert client.post("/v1/tokenize", json={"model": "second", "prompt": "abc"}).status_code == 404
        after = scrape(running)
    for name, value in before.items():
        if "tokenizer_cache" in name and "_total" in name:
            assert after[name] == value, name


def test_histogram_buckets() -> None:
    """Buckets are cumulative and include their bound."""
    metrics = Metrics("x")
    for seconds in (0.0001, 0.0005, 0.001, 1000.0):
        metrics.observe_request("/a", 200, seconds)
    text = metrics.exposition().decode()
    assert 'x_request_duration_seconds_bucket{le="0.0005",route="/a"} 2.0' in text
    assert 'x_request_duration_seconds_bucket{le="0.001",route="/a"} 3.0' in text
    assert 'x_request_duration_seconds_bucket{le="300.0",route="/a"} 3.0' in text
    assert 'x_request_duration_seconds_bucket{le="+Inf",route="/a"} 4.0' in text


def test_prometheus_port() -> None:
    """The metrics are on their own port too when one is given."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with serve(prometheus_port=port):
        assert "foreword_requests_running" in httpx.get(f"http://127.0.0.1:{port}/metrics").text


def test_fingerprint_is_the_specifications() -> None:
    """The first 16 hex digits of the sha256 of model|tokenizer|ids."""
    assert fingerprint_ids([1, 22, 333], "tok", "model") == "d51e7ebfd181db51"


def test_fingerprints_are_counted_for_five_minutes() -> None:
    """One that was not seen for five minutes no longer counts."""
    now = [0.0]
    distinct = DistinctFingerprints(lambda: now[0])
    for at, fingerprint in ((0, "a"), (10, "b"), (20, "a"), (311, "c")):
        now[0] = at
        distinct.add("m", fingerprint)
    assert len(list(distinct.samples())) == 2
    now[0] = 612
    assert list(distinct.samples()) == []


def asked_for(text: str) -> set[str]:
    """The metrics that queries in a text name, without a histogram's suffix."""
    return {re.sub(r"_(bucket|count|sum)$", "", name) for name in re.findall(r"\bforeword_\w+", text)}


@pytest.mark.parametrize("file", ["grafana/foreword.json", "prometheus/alerts.yml"])
def test_deployed_queries_name_metrics_that_exist(file: str) -> None:
    """The dashboard and the alert rules ask only for metrics of the table."""
    known = {f"foreword_{definition.exposed_name}" for definition in DEFINITIONS}
    found = asked_for((DEPLOY / file).read_text())
    assert found <= known
    assert len(found) >= 8


def test_dashboard_is_json_with_a_query_in_each_panel() -> None:
    """Grafana can load it."""
    dashboard = json.loads((DEPLOY / "grafana/foreword.json").read_text())
    assert all(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
