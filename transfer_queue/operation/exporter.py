"""A Prometheus endpoint for a running queue, in any process but the controller's: it asks as an outsider, once a second at most."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from transfer_queue.operation import metrics
from transfer_queue.operation.address import metrics_url
from transfer_queue.operation.endpoint import serve_metrics
from transfer_queue.operation.probe import FAILURES, Probe
from transfer_queue.operation.report import QueueReport
from transfer_queue.security import Security

FRESH_S = 1.0  # scrapes within it get the same answer: what strangers ask for costs the controller nothing
ANSWER_S = 3.0  # of controller and shards together; Prometheus itself waits for 10 s


class QueueCollector(Collector):
    """What a scrape gets. Scrapes come in threads of their own; one of them asks, the others wait for its answer."""

    def __init__(self, ask: Callable[[], QueueReport], fresh_s: float = FRESH_S) -> None:
        """`ask` raises one of `FAILURES` where the controller does not answer."""
        self._ask, self._fresh_s = ask, fresh_s
        self._words = metrics.Words()
        self._lock = threading.Lock()
        self._latest: QueueReport | None = None  # None: the controller did not answer
        self._stale_at = 0.0  # time.monotonic; 0: nobody asked yet

    def collect(self) -> Iterator[Metric]:
        report = self._report()
        yield from metrics.down() if report is None else metrics.families(report, self._words)

    def end(self) -> None:
        """Nobody asks any more once this returns."""
        with self._lock:
            self._latest, self._stale_at = None, float("inf")

    def _report(self) -> QueueReport | None:
        with self._lock:
            if time.monotonic() >= self._stale_at:
                try:
                    self._latest = self._ask()
                except FAILURES:
                    self._latest = None
                self._stale_at = time.monotonic() + self._fresh_s
            return self._latest


class Exporter:
    """Listens from its making to leaving the context. A controller that is not up yet, or is gone, is told as `transfer_queue_up 0`."""

    def __init__(self, url: str, security: Security | None, host: str, port: int) -> None:
        """Raises OSError where it cannot listen at `host` and `port` (0: any free one), ValueError where `url` is no address."""
        self._probe = Probe(url, security)
        self._collector = QueueCollector(lambda: self._probe.ask(ANSWER_S))
        registry = CollectorRegistry()
        registry.register(self._collector)
        try:
            self._server, self._thread = serve_metrics(host, port, registry)
        except OSError:
            self._probe.close()
            raise
        self.url = metrics_url(host, self._server.server_port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._collector.end()  # a scrape may still be under way
        self._probe.close()
