"""What Prometheus reads: requests, stages of a search, queue, commits, and the process itself."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

_SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_SIZES = (1, 2, 4, 8, 16)
STAGES = ("queue", "encode", "scan", "documents", "explain")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """All figures of one server, in a registry of its own.

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
            "Answers by route, method and status",
            ("route", "method", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "citadel_request_seconds", "From first byte of a request to last of its answer", ("route",),
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        stages = Histogram(
            "citadel_search_seconds", "Time of a search by stage", ("stage",), buckets=_SECONDS, registry=self.registry
        )
        self._stages = {stage: stages.labels(stage) for stage in STAGES}
        self._group = Histogram(
            "citadel_batch_size", "Requests a worker took together", buckets=_SIZES, registry=self.registry
        )
        self._labelled: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def gauge(self, name: str, help: str, value: Callable[[], float]) -> None:
        """A figure that is looked up when Prometheus asks."""
        Gauge(name, help, registry=self.registry).set_function(value)

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count an answer."""
        key = (route, method, status)
        if key not in self._labelled:
            self._labelled[key] = (self._requests.labels(route, method, str(status)), self._seconds.labels(route))
        counter, histogram = self._labelled[key]
        counter.inc()
        histogram.observe(seconds)

    def taken(self, waits: list[float]) -> None:
        """A worker took some requests together, which had waited so long."""
        self._group.observe(len(waits))
        for seconds in waits:
            self._stages["queue"].observe(seconds)

    def stage(self, stage: str, seconds: float) -> None:
        """Time of one stage of a search."""
        self._stages[stage].observe(seconds)

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self.registry)
