"""Prometheus metrics of the HTTP side of a service. Calls through Ray handles are counted by Ray Serve's own metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class ServiceMetrics:
    """A registry of its own, so that two services in one process do not share counters."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "search_http_requests", "HTTP requests by route and status", ["route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "search_http_request_seconds",
            "Time from request to answer, seconds",
            ["route"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._tools = Counter(
            "search_tool_calls", "Calls of tools by tool and outcome", ["tool", "outcome"], registry=self._registry
        )
        self._hits = Counter("search_hits", "Results given, by tool", ["tool"], registry=self._registry)

    def http_request(self, route: str, status: int, seconds: float) -> None:
        """Counts one answered request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def tool_call(self, tool: str, outcome: str, hits: int = 0) -> None:
        """Counts one call of a known tool; `outcome`: `ok`, or the class of the error."""
        self._tools.labels(tool, outcome).inc()
        self._hits.labels(tool).inc(hits)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)
