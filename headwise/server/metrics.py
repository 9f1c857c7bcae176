"""The metrics for Prometheus at /metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from headwise.server.engine import Engine
from headwise.server.pool.statistics import Statistics

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_MODEL = ["model", "version"]


class Metrics:
    """The metrics of one server, in a separate registry. Labels have few values, for example routes, not paths."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "headwise_requests",
            "Answered requests, by protocol, route and HTTP status or gRPC code.",
            ("protocol", "route", "code"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "headwise_request_seconds",
            "Time from the header of a request to the end of its answer.",
            ("protocol", "route"),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._in_flight = Gauge(
            "headwise_requests_in_flight", "Requests in progress.", ("protocol",), registry=self._registry
        )

    def begin(self, protocol: str) -> None:
        """Count a request that arrived as being in progress."""
        self._in_flight.labels(protocol).inc()

    def end(self, protocol: str, route: str, code: str, seconds: float) -> None:
        """Count a request that was answered, with the seconds that it took."""
        self._in_flight.labels(protocol).dec()
        self._requests.labels(protocol, route, code).inc()
        self._seconds.labels(protocol, route).observe(seconds)

    def tell_engine(self, engine: Engine, statistics: Statistics) -> None:
        """Add metrics of the loaded models and of the worker pool, which are read anew each time they are asked for."""
        self._registry.register(_Asked(lambda: _collect_models(engine)))
        self._registry.register(_Asked(lambda: _collect_pool(statistics)))

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)


class _Asked:
    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self.collect = collect

    def describe(self) -> list[Any]:
        return []  # otherwise registration would call collect()


def _collect_models(engine: Engine) -> Iterable[Metric]:
    ready = GaugeMetricFamily("headwise_model_ready", "1 if a worker has loaded the model.", labels=[*_MODEL, "task"])
    for served in engine.models():
        ready.add_metric([served.name, served.version, served.description.task], float(served.ready))
    yield ready


def _collect_pool(statistics: Statistics) -> Iterable[Metric]:
    yield GaugeMetricFamily("headwise_workers", "Worker processes that can answer.", statistics.workers)
    yield CounterMetricFamily("headwise_worker_restarts", "Workers that died and were replaced.", statistics.restarts)
    loads = CounterMetricFamily("headwise_model_loads", "Model loads.", labels=["outcome"])
    loads.add_metric(["ok"], statistics.loads - statistics.failed_loads)
    loads.add_metric(["failed"], statistics.failed_loads)
    yield loads
    waiting = GaugeMetricFamily("headwise_queue_rows", "Rows waiting for a worker.", labels=_MODEL)
    working = GaugeMetricFamily("headwise_worker_rows", "Rows being computed by workers.", labels=_MODEL)
    rows = CounterMetricFamily("headwise_rows", "Rows by outcome.", labels=[*_MODEL, "outcome"])
    batches = HistogramMetricFamily("headwise_batch_rows", "Rows per batch.", labels=_MODEL)
    queued = HistogramMetricFamily("headwise_queue_seconds", "Time a row waited for a worker.", labels=_MODEL)
    computed = HistogramMetricFamily("headwise_model_seconds", "Time a worker took for a batch.", labels=_MODEL)
    for labels, numbers in ((list(key), numbers) for key, numbers in sorted(statistics.models.items())):
        waiting.add_metric(labels, numbers.waiting)
        working.add_metric(labels, numbers.in_flight)
        for outcome, count in sorted(numbers.outcomes.items()):
            rows.add_metric([*labels, outcome], count)
        for family, histogram in (
            (batches, numbers.batch_rows),
            (queued, numbers.queue_seconds),
            (computed, numbers.model_seconds),
        ):
            family.add_metric(labels, histogram.cumulative(), histogram.total)
    yield from (waiting, working, rows, batches, queued, computed)
