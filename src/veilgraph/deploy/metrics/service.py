"""The service of ``veilgraph net serve``, watched: how it answers, and how old what it answers from is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, Metric

from veilgraph.deploy.metrics.exposed import build, gauge


class Requests:
    """Counts requests, as the service's log has them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], int] = {}
        self._seconds: dict[str, float] = {}

    def count(self, path: str, status: int, seconds: float) -> None:
        """A request that was answered."""
        with self._lock:
            key = path, str(status)
            self._counts[key] = self._counts.get(key, 0) + 1
            self._seconds[path] = self._seconds.get(path, 0.0) + seconds

    def families(self) -> Iterable[Metric]:
        """The counts so far."""
        many = CounterMetricFamily("veilgraph_serve_requests", "Requests answered.", labels=["path", "status"])
        took = CounterMetricFamily("veilgraph_serve_request_seconds", "Time that answers took.", labels=["path"])
        with self._lock:
            for key, count in self._counts.items():
                many.add_metric(key, count)
            for path, seconds in self._seconds.items():
                took.add_metric([path], seconds)
        return many, took


@dataclass(frozen=True)
class Served:
    """What a service answers from."""

    age_s: float
    is_damaged: bool
    is_too_old: bool


class WatchedService:
    """Metrics and readiness of a service."""

    def __init__(self, served: Callable[[], Served], requests: Requests) -> None:
        self._served, self._requests = served, requests

    def families(self) -> Iterable[Metric]:
        """All metrics; docs/operations.md says what each tells."""
        now = self._served()
        yield build("service")
        yield from self._requests.families()
        yield from gauge("inference_age_seconds", "Seconds since the parties computed what is served.", now.age_s)
        yield from gauge("inference_damaged", "1 while a newer inference cannot be read.", now.is_damaged)
        yield from gauge("inference_too_old", "1 while predictions are refused for their age.", now.is_too_old)

    def ready(self) -> tuple[bool, str]:
        """Whether predictions are answered."""
        old = self._served().is_too_old
        return (False, "not ready: the newest inference is too old") if old else (True, "ready")

    def alive(self) -> tuple[bool, str]:
        """It runs, as long as anything answers."""
        return True, "alive"
