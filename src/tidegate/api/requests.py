"""Counts of requests and how long they took, by route."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Requests:
    """The requests of one service, in a registry of its own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._count = Counter(
            "tidegate_http_requests",
            "Requests answered.",
            ("method", "route", "status"),
            registry=registry,
        )
        self._seconds = Histogram(
            "tidegate_http_request_seconds",
            "How long requests took.",
            ("route",),
            buckets=_BOUNDS,
            registry=registry,
        )
        self._counts: dict[tuple[str, str, int], Counter] = {}
        self._timers: dict[str, Histogram] = {}

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        key = (method if method in _METHODS else "other", route, status)
        counted = self._counts.get(key)
        if counted is None:
            # Looking a series up by its labels costs more than counting.
            counted = self._counts[key] = self._count.labels(key[0], route, str(status))
        counted.inc()
        timer = self._timers.get(route)
        if timer is None:
            timer = self._timers[route] = self._seconds.labels(route)
        timer.observe(seconds)
