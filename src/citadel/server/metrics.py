"""Prometheus metrics: requests, search stages, queue, commits and the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

_SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_SIZES = (1, 2, 4, 8, 16)
STAGES = ("queue", "encode", "scan", "documents", "explain")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The metrics of one server, in their own registry.

    >>> metrics = Metrics()
    >>> metrics.request("/v1/search", "POST", 200, 0.002)
    >>> b'citadel_requests_total{method="POST",route="/v1/search",status="200"} 1.0' in metrics.text()
    True
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "citadel_requests",
            "Responses by route, method and status",
            ("route", "method", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "citadel_request_seconds",
            "From the first byte of a request to the last of its response",
            ("route",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        stages = Histogram(
            "citadel_search_seconds",
            "Search time by stage",
            ("stage",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._stages = {stage: stages.labels(stage) for stage in STAGES}
        self._batch_size = Histogram(
            "citadel_batch_size", "Requests per batch of a worker", buckets=_SIZES, registry=self.registry
        )
        self._labelled: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def gauge(self, name: str, help: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is read at each scrape."""
        Gauge(name, help, registry=self.registry).set_function(value)

    def gauges(self, name: str, help: str, values: Mapping[str, Callable[[], float]]) -> None:
        """Add a gauge per index; with one index it has no label."""
        if len(values) == 1:
            self.gauge(name, help, next(iter(values.values())))
            return
        gauge = Gauge(name, help, ("index",), registry=self.registry)
        for index, value in values.items():
            gauge.labels(index).set_function(value)

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a response and its duration."""
        key = (route, method, status)
        if key not in self._labelled:
            self._labelled[key] = (
                self._requests.labels(route, method, str(status)),
                self._seconds.labels(route),
            )
        counter, histogram = self._labelled[key]
        counter.inc()
        histogram.observe(seconds)

    def batch_taken(self, waits: list[float]) -> None:
        """Record a batch that a worker took, with the seconds each request had waited."""
        self._batch_size.observe(len(waits))
        for seconds in waits:
            self._stages["queue"].observe(seconds)

    def stage(self, stage: str, seconds: float) -> None:
        """Record the seconds of one search stage."""
        self._stages[stage].observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in the text format."""
        return generate_latest(self.registry)
