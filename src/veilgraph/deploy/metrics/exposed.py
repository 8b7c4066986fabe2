"""Pages of metrics and readiness, the families they are made of, and ``veilgraph net serve`` as it is watched."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from veilgraph.core import __version__
from veilgraph.deploy.https import Page
from veilgraph.deploy.metrics.door import answer

KEPT_S: Final = 1.0
"""So long an answer is given again: whoever asks without a pause costs no more than who asks every second."""

METRICS, READY, ALIVE = "/metrics", "/ready", "/healthz"


class Monitored(Collector):
    """Base of a monitored site or service: ``collect`` gives its current metrics, ``ready`` and ``alive`` its state."""

    def describe(self) -> Iterable[Metric]:
        """Announce no metrics beforehand: which there are depends on the state."""
        return ()

    @abstractmethod
    def ready(self) -> tuple[bool, str]:
        """Whether it does its work, and in a few words that never change why not."""

    def alive(self) -> tuple[bool, str]:
        """Whether it runs at all, by default as long as anything answers: else to start it again may help."""
        return True, "alive"


def pages(watched: Monitored) -> Mapping[str, Callable[[], Page]]:
    """Path (/metrics, /ready, /healthz) → function that makes its answer, once a second at most."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(watched)
    ProcessCollector(registry=registry)
    return {
        METRICS: _cached(lambda: Page(generate_latest(registry), kind=CONTENT_TYPE_PLAIN_0_0_4)),
        READY: _cached(lambda: answer(*watched.ready())),
        ALIVE: _cached(lambda: answer(*watched.alive())),
    }


def gauge(name: str, words: str, value: float | None) -> Iterator[Metric]:
    """Yield the gauge ``veilgraph_<name>`` with its help ``words``; nothing where ``value`` is None."""
    if value is not None:
        yield GaugeMetricFamily(f"veilgraph_{name}", words, value)


def gauges(name: str, words: str, label: str, values: Mapping[str, float]) -> Metric:
    """The gauge ``veilgraph_<name>``, with a value for each value of its ``label``."""
    family = GaugeMetricFamily(f"veilgraph_{name}", words, labels=[label])
    for each, value in values.items():
        family.add_metric([each], value)
    return family


def build(role: str) -> Metric:
    """The gauge ``veilgraph_build_info``, labelled with the release and the process's role."""
    family = GaugeMetricFamily("veilgraph_build_info", "Release, and what it runs as.", labels=["version", "role"])
    family.add_metric([__version__, role], 1)
    return family


def _cached(make: Callable[[], Page]) -> Callable[[], Page]:
    """Wrap ``make`` so that it is called at most once in ``KEPT_S``, and its last answer is given again until then."""
    made: list[tuple[float, Page]] = []

    def answered() -> Page:
        now = time.monotonic()
        if not made or now - made[0][0] >= KEPT_S:
            made[:] = [(now, make())]
        return made[0][1]

    return answered


class Requests:
    """Counts of answered requests by path and status, and seconds by path; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], int] = {}
        self._seconds: dict[str, float] = {}

    def count(self, path: str, status: int, seconds: float) -> None:
        """Count an answered request, which took so many seconds."""
        with self._lock:
            key = path, str(status)
            self._counts[key] = self._counts.get(key, 0) + 1
            self._seconds[path] = self._seconds.get(path, 0.0) + seconds

    def families(self) -> Iterable[Metric]:
        """The counts so far as two counters: requests, and seconds of answering."""
        many = CounterMetricFamily("veilgraph_serve_requests", "Requests answered.", labels=["path", "status"])
        took = CounterMetricFamily("veilgraph_serve_request_seconds", "Time that answers took.", labels=["path"])
        with self._lock:
            for key, count in self._counts.items():
                many.add_metric(key, count)
            for path, seconds in self._seconds.items():
                took.add_metric([path], seconds)
        return many, took


@dataclass(frozen=True)
class InferenceState:
    """State of the joint inference that a service answers from."""

    age_s: float
    is_damaged: bool
    is_too_old: bool


class WatchedService(Monitored):
    """Metrics and readiness of a service."""

    def __init__(self, served: Callable[[], InferenceState], requests: Requests) -> None:
        self._served, self._requests = served, requests

    def collect(self) -> Iterable[Metric]:
        """All metrics; docs/guides/operations.md says what each tells."""
        now = self._served()
        yield build("service")
        yield from self._requests.families()
        yield from gauge("inference_age_seconds", "Seconds since the parties computed what is served.", now.age_s)
        yield from gauge("inference_damaged", "1 while a newer inference cannot be read.", now.is_damaged)
        yield from gauge("inference_too_old", "1 while predictions are refused for their age.", now.is_too_old)

    def ready(self) -> tuple[bool, str]:
        """Whether predictions are answered, which an inference that is too old prevents; and words for it."""
        old = self._served().is_too_old
        return (False, "not ready: the newest inference is too old") if old else (True, "ready")
