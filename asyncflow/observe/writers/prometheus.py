"""A Prometheus endpoint: the state of the run as of its last commit, in the usual names and base units.

Counters hold the run's own totals. None of them starts anew while a run goes on, so `rate()` works.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from asyncflow.config import RunConfig
from asyncflow.config.errors import SettingError
from asyncflow.observe.live.follow import seconds_of
from asyncflow.observe.records import StepRecord, Summary, TimelineRecord
from transfer_queue.operation.address import metrics_url, split_bind
from transfer_queue.operation.endpoint import serve_metrics

URL_FILE = "prometheus.url"  # of a run directory, while its endpoint is there
OPEN_STATES = ("admitted", "generating", "complete", "leased")


class PrometheusWriter(Collector):
    """Serves from its own threads what its writer's thread last put down; each value is replaced whole, so no scrape sees half of one."""

    def __init__(self, config: RunConfig, run_dir: Path, bind: str) -> None:
        """Listens when it returns. Raises SettingError when it cannot listen at `bind`."""
        self._config = config
        self._step: StepRecord | None = None
        self._step_at = 0.0  # wall clock
        self._tokens = 0.0
        self._seconds: dict[tuple[str, str], float] = {}  # (role, activity)
        self._accuracy: tuple[int, float] | None = None  # of the newest evaluated version
        registry = CollectorRegistry()
        registry.register(self)
        host, port = split_bind(bind)
        try:
            self._server, self._thread = serve_metrics(host, port, registry)
        except OSError as error:  # gaierror too
            raise SettingError(
                "observe.prometheus_bind",
                bind,
                rule=f"an endpoint must be able to listen there, and it cannot: {error}",
                consequence="nothing was started",
                fix=["observe.prometheus_bind=127.0.0.1:0"],
                advice="which takes a free port, or end what listens there",
            ) from None
        self.url = metrics_url(host, self._server.server_port)
        self._url_file = run_dir / URL_FILE
        self._url_file.write_text(f"{self.url}\n")

    def step(self, record: StepRecord) -> None:
        self._tokens += record.info.get("tokens", 0.0)
        self._step, self._step_at = record, time.time()

    def evaluation(self, version: int, accuracy: float, t_s: float) -> None:
        if self._accuracy is None or version >= self._accuracy[0]:
            self._accuracy = (version, accuracy)

    def worker_time(self, record: TimelineRecord) -> None:
        more = {(record.role, activity): spent for activity, spent in seconds_of(record).items()}
        self._seconds = self._seconds | {key: self._seconds.get(key, 0.0) + spent for key, spent in more.items()}

    def close(self, summary: Summary | None) -> None:
        """The endpoint ends with the run."""
        self._url_file.unlink(missing_ok=True)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    # ------------------------------------------------------------ the scraping threads

    def collect(self) -> Iterator[Metric]:
        config, step = self._config, self._step
        bound = "null" if config.staleness is None else str(config.staleness)
        run = {"name": config.run.name, "dir": config.run_dir.name, "staleness": bound, "policy": config.flow.policy}
        yield InfoMetricFamily("asyncflow_run", "The run that is served here.", run)
        yield _gauge("target_version", "Version at which the run ends.", config.total_steps)
        if config.staleness is not None:
            yield _gauge("staleness_bound_versions", "Most versions between a trained token and the trainer.", config.staleness)
        yield _labelled(CounterMetricFamily, "worker_seconds", "Time of the workers' main threads.", ("role", "activity"), self._seconds.items())
        if self._accuracy is not None:
            version, accuracy = self._accuracy
            yield _gauge("evaluation_accuracy", "Share of held-out items answered right, newest evaluation.", accuracy)
            yield _gauge("evaluation_version", "Version that was evaluated.", version)
        if step is None:
            yield _gauge("version", "Global batches committed.", 0)
            return
        yield CounterMetricFamily("asyncflow_trained_tokens", "Tokens of all commits.", self._tokens)
        yield _gauge("last_commit_timestamp_seconds", "When the last commit was seen.", self._step_at)
        yield from _of_step(step)


def _of_step(step: StepRecord) -> Iterator[Metric]:
    yield _gauge("version", "Global batches committed.", step.version)
    measured = (
        ("reward_mean", "Mean reward of the last step.", step.reward_mean),
        ("staleness_mean_versions", "Mean staleness of the last step's tokens.", step.staleness_mean),
        ("staleness_p95_versions", "95th percentile of the same.", step.staleness_p95),
        ("staleness_max_versions", "Largest of the same.", step.staleness_max),
        ("trained_tokens_per_second", "Trained tokens over the time of the last step.", step.tokens_per_s),
        ("permits_free", "Groups that might still be admitted.", step.permits if step.permits >= 0 else None),
    )
    yield from (_gauge(name, text, value) for name, text, value in measured if value is not None)
    yield _gauge("prompts_waiting", "Prompts that no producer has yet.", step.prompts_waiting)
    yield _gauge("queue_rows", "Rows stored for open groups.", step.queue_rows)
    yield _gauge("queue_reserved_bytes", "Bytes reserved for open groups at their worst case.", step.queue_bytes)
    opened = [((state,), step.ledger.get(state, 0)) for state in OPEN_STATES]
    yield _labelled(GaugeMetricFamily, "groups", "Open groups by state.", ("state",), opened)
    yield CounterMetricFamily("asyncflow_trained_groups", "Groups trained.", step.ledger.get("trained", 0))
    dropped = [((state.partition(":")[2],), count) for state, count in step.ledger.items() if state.startswith("dropped:")]
    yield _labelled(CounterMetricFamily, "dropped_groups", "Groups dropped, by reason.", ("reason",), dropped)
    depths = [((name,), depth) for name, depth in step.stages.items()]
    ready, leased, done = ([(key, getattr(depth, rows)) for key, depth in depths] for rows in ("ready_rows", "leased_rows", "done_rows"))
    yield _labelled(GaugeMetricFamily, "stage_ready_rows", "Rows that wait for a stage.", ("stage",), ready)
    yield _labelled(GaugeMetricFamily, "stage_leased_rows", "Rows that a stage works on.", ("stage",), leased)
    yield _labelled(CounterMetricFamily, "stage_done_rows", "Rows that a stage has done.", ("stage",), done)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"asyncflow_{name}", text, value=value)


Family = type[GaugeMetricFamily] | type[CounterMetricFamily]


def _labelled(family: Family, name: str, text: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    metric = family(f"asyncflow_{name}", text, labels=labels)
    for key, value in values:
        metric.add_metric(key, value)
    return metric
