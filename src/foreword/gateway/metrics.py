"""Every metric: one table of names, labels and meanings, from which the docs page is made, and the code that fills it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

disable_created_metrics()  # type: ignore[no-untyped-call]  # twice the series, and nobody reads them

Kind = Literal["counter", "gauge", "histogram"]

LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


@dataclass(frozen=True, slots=True)
class Definition:
    """One metric, without its namespace; counters are exposed with ``_total`` behind the name."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def exposed_name(self) -> str:
        """The name as PromQL uses it, without the namespace."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


DEFINITIONS: tuple[Definition, ...] = (
    Definition("requests", "counter", "Requests answered, by route and status.", ("route", "status")),
    Definition("request_duration_seconds", "histogram", "Time from a request's head to its last byte.", ("route",)),
    Definition("requests_running", "gauge", "Requests in work."),
    Definition("requests_queued", "gauge", "Requests that wait for their turn."),
    Definition(
        "time_to_first_token_seconds", "histogram", "Time from a request's head to its first token.", ("model",)
    ),
    Definition("prompt_tokens", "counter", "Prompt tokens sent to workers.", ("model",)),
    Definition("completion_tokens", "counter", "Tokens generated.", ("model",)),
    Definition("prefix_cache_queries", "counter", "Prompt tokens looked up in a worker's prefix cache.", ("worker",)),
    Definition("prefix_cache_hits", "counter", "Prompt tokens that a worker's prefix cache held.", ("worker",)),
    Definition("worker_healthy", "gauge", "1 when the worker would take a request, else 0.", ("worker", "model")),
    Definition("worker_requests_running", "gauge", "Requests that run on the worker.", ("worker",)),
    Definition("worker_requests_waiting", "gauge", "Requests that wait on the worker.", ("worker",)),
    Definition("worker_kv_usage_ratio", "gauge", "Share of the worker's KV memory in use, 0 to 1.", ("worker",)),
    Definition("worker_requests_in_flight", "gauge", "Requests sent to the worker and not done.", ("worker",)),
    Definition("worker_retries", "counter", "Requests sent to a further worker after one failed."),
    Definition(
        "prefix_cache_predicted_tokens",
        "counter",
        "Cached prompt tokens foretold: exact from KV events and the prompt's ids, else approximate.",
        ("worker", "basis"),
    ),
    Definition(
        "prefix_cache_reported_tokens",
        "counter",
        "Cached prompt tokens that a worker reported for the requests of which they were foretold.",
        ("worker", "basis"),
    ),
    Definition(
        "prefix_cache_mispredictions",
        "counter",
        "Requests for which the number foretold exactly and the reported one differ.",
        ("worker",),
    ),
    Definition("prompt_cache_disk_blocks", "gauge", "Blocks that a worker's disk tier holds.", ("worker",)),
    Definition("prompt_cache_disk_bytes", "gauge", "Bytes that a worker's disk tier holds.", ("worker",)),
    Definition("prompt_cache_disk_stored", "counter", "Blocks written to a worker's disk tier.", ("worker",)),
    Definition("prompt_cache_disk_read", "counter", "Blocks brought back from a worker's disk tier.", ("worker",)),
    Definition("prompt_cache_disk_evicted", "counter", "Blocks deleted from it, for any reason.", ("worker",)),
    Definition("prompt_cache_disk_damaged", "counter", "Blocks found damaged in it, and deleted.", ("worker",)),
    Definition("prompt_cache_disk_failed", "counter", "Blocks that could not be written to it.", ("worker",)),
    Definition("shared_state_connected", "gauge", "1 while the server shared between gateways answers, else 0."),
    Definition("worker_failures", "counter", "Requests that a worker failed.", ("worker",)),
    Definition(
        "distinct_prefix_fingerprints", "gauge", "Distinct prefix_fp seen in the last five minutes.", ("model",)
    ),
    Definition(
        "seam_verdicts",
        "counter",
        "Requests by the cause that broke their prefix; none where it held.",
        ("model", "cause"),
    ),
    Definition(
        "tokenizer_cache_lookups", "counter", "Tokenizer cache lookups, by layer and result.", ("layer", "result")
    ),
    Definition("tokenizer_cache_evictions", "counter", "Entries evicted from a layer.", ("layer",)),
    Definition("tokenizer_cache_reused_bytes", "counter", "Bytes of text that a layer's hits covered.", ("layer",)),
    Definition("tokenizer_cache_entries", "gauge", "Entries that a layer holds.", ("layer",)),
    Definition("tokenizer_cache_bytes", "gauge", "Bytes that a layer holds.", ("layer",)),
    Definition("tokenizer_cached_tokens", "counter", "Tokens that came from the tokenizer cache."),
    Definition("tokenizer_uncached_tokens", "counter", "Tokens that had to be encoded."),
    Definition(
        "tokenizer_encoder_fallbacks", "counter", "Times the fast encoder was left for the reference.", ("tokenizer",)
    ),
    Definition("tokenize_response_cache_entries", "gauge", "Ready answers of /v1/tokenize held for identical bodies."),
    Definition("tokenize_response_cache_bytes", "gauge", "Bytes of ready answers of /v1/tokenize."),
    Definition("tokenize_response_cache_evictions", "counter", "Ready answers of /v1/tokenize evicted."),
)


class _RequestTally:
    """Requests of one route and status: how many, and how long they took. As a histogram's child, at a fifth of its cost."""

    __slots__ = ("buckets", "count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(LATENCY_BUCKETS) + 1)

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.count += 1
        self.seconds += seconds
        self.buckets[bisect_left(LATENCY_BUCKETS, seconds)] += 1


Sample = tuple[str, tuple[str, ...], float]
"""A metric's name in the table, its label values, its value."""
Source = Callable[[], Iterable[Sample]]
"""Something that is asked for its samples at each scrape."""


class Metrics:
    """The process's metrics under one namespace. Hot ones are kept as children; the rest is asked for when scraped."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.registry = CollectorRegistry()
        self._definitions = {definition.name: definition for definition in DEFINITIONS}
        self._sources: list[Source] = []
        self._tallies: dict[tuple[str, int], _RequestTally] = {}
        self._first_token = self._histogram("time_to_first_token_seconds")
        self._prompt_tokens = self._counter("prompt_tokens")
        self._completion_tokens = self._counter("completion_tokens")
        self._queries = self._counter("prefix_cache_queries")
        self._hits = self._counter("prefix_cache_hits")
        self._failures = self._counter("worker_failures")
        self.registry.register(_Scrape(self))

    def add_source(self, source: Source) -> None:
        """Ask ``source`` for samples at every scrape."""
        self._sources.append(source)

    def observe_request(self, route: str, status: int, seconds: float) -> None:
        """Count one answered request; ``route`` is empty for a path that is not there."""
        tally = self._tallies.get((route, status))
        if tally is None:
            tally = self._tallies[route, status] = _RequestTally()
        tally.observe(seconds)

    def observe_first_token(self, model: str, seconds: float) -> None:
        """Record how long a client waited for its first token."""
        self._first_token.labels(model).observe(seconds)

    def observe_generation(self, model: str, worker: str, prompt: int, cached: int, completion: int) -> None:
        """Count one prompt's tokens when it is done."""
        self._prompt_tokens.labels(model).inc(prompt)
        self._completion_tokens.labels(model).inc(completion)
        self._queries.labels(worker).inc(prompt)
        self._hits.labels(worker).inc(cached)

    def observe_failure(self, worker: str) -> None:
        """Count a request that a worker failed."""
        self._failures.labels(worker).inc()

    def exposition(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """The metrics that are asked for at scrape time; samples of one series from several sources are added up."""
        yield from self._request_families()
        totals: dict[str, dict[tuple[str, ...], float]] = {}
        for source in self._sources:
            for name, labels, value in source():
                series = totals.setdefault(name, {})
                series[labels] = series.get(labels, 0) + value
        for name, series in totals.items():
            family = self._family(self._definitions[name])
            for labels, value in series.items():
                family.add_metric(labels, value)
            yield family

    def _request_families(self) -> Iterator[Metric]:
        counter = self._family(self._definitions["requests"])
        row = self._definitions["request_duration_seconds"]
        histogram = HistogramMetricFamily(f"{self.namespace}_{row.name}", row.help, labels=row.labels)
        by_route: dict[str, list[_RequestTally]] = {}
        for (route, status), tally in list(self._tallies.items()):
            counter.add_metric((route or "none", str(status)), tally.count)
            by_route.setdefault(route or "none", []).append(tally)
        for route, tallies in by_route.items():
            counts = accumulate(map(sum, zip(*(tally.buckets for tally in tallies), strict=True)))
            bounds = [*map(floatToGoString, LATENCY_BUCKETS), "+Inf"]
            seconds = sum(tally.seconds for tally in tallies)
            histogram.add_metric((route,), list(zip(bounds, counts, strict=True)), seconds)
        yield counter
        yield histogram

    def _family(self, definition: Definition) -> CounterMetricFamily | GaugeMetricFamily:
        kind = CounterMetricFamily if definition.kind == "counter" else GaugeMetricFamily
        return kind(f"{self.namespace}_{definition.name}", definition.help, labels=definition.labels)

    def _counter(self, name: str) -> Counter:
        row = self._definitions[name]
        return Counter(name, row.help, row.labels, namespace=self.namespace, registry=self.registry)

    def _histogram(self, name: str) -> Histogram:
        row = self._definitions[name]
        return Histogram(
            name, row.help, row.labels, namespace=self.namespace, registry=self.registry, buckets=LATENCY_BUCKETS
        )


class _Scrape(Collector):
    """Lets the registry ask Metrics for its late samples."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self._metrics.collect()
