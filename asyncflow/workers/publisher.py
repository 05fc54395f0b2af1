"""The publisher's process: holds the last version of one model in host memory, digests it, announces it to the controller, brings it to everybody who
computes with it, and exports it as ordinary files."""

from __future__ import annotations

import threading
from pathlib import Path

from asyncflow.contracts.weights import WeightsId, to_model_version
from asyncflow.workers.context import REPLY_S, WorkerContext
from checkpoint_engine.fanout import SyncReport
from checkpoint_engine.publisher import Publisher

IDLE_S = 30.0
EXPORTS = "weights"  # folder of a run directory: one folder a version
END_S = 10.0  # how long the library's loop may take to close its groups


class PublisherWorker:
    """The library's loop runs in a thread; here is the controller's side of it: published, death notices, exports."""

    def __init__(self, context: WorkerContext, model: str, model_dir: Path, publisher: Publisher) -> None:
        self._context, self._model, self._model_dir, self._publisher = context, model, model_dir, publisher
        self._export_every = context.config.weights.export_every
        self._members: set[str] = set()
        self._exported: WeightsId | None = None
        self._covered = -1  # multiples of `export_every` that the exports so far reached or passed; 0 is version 0's
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="publisher", daemon=True)

    def run(self) -> None:
        self._thread.start()
        try:
            while not self._context.control.stopping:
                self._check()
                self._notice_deaths()
                self._export_if_due()
                self._context.wait(IDLE_S)
            self._export_last()
        finally:
            self._stop.set()
            self._thread.join(END_S)

    def _serve(self) -> None:
        try:
            self._publisher.run(self._stop)
        except Exception as error:  # carried to the worker's loop, which raises it under its own name
            self._error = error
            self._context.wake.set()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _notice_deaths(self) -> None:
        """A member of the roster that is gone will never answer: its leases and its place in the broadcast group are over."""
        alive = set(self._context.control.directive.alive)
        for member in self._members - alive:
            self._publisher.death_notice(member)
        self._members = alive

    # -------------------------------------------------------------- exports

    def _export_if_due(self) -> None:
        """When a multiple of `export_every` is reached or passed: versions may follow one another faster than this loop sees them."""
        published = self._publisher.published
        if published is not None and self._export_every is not None and published.version // self._export_every > self._covered:
            self._export(published)
            assert self._exported is not None
            self._covered = self._exported.version // self._export_every

    def _export_last(self) -> None:
        """What the run ends with, whichever version that is."""
        published = self._publisher.published
        if published is not None:
            self._export(published)

    def _export(self, weights: WeightsId) -> None:
        """A newer version may be served by the time it is written: the directory is called by what it holds."""
        if weights == self._exported:
            return
        folder = self._context.config.run_dir / EXPORTS
        draft = folder / f".{self._model}"
        with self._context.clock.during("busy", "export"):
            self._exported = weights = self._publisher.export(draft, base=self._model_dir)
        path = folder / f"{self._model}-{weights.epoch}.{weights.version}"
        draft.rename(path)
        data: dict[str, float | int | str] = {"model": weights.model, "version": weights.version, "digest": weights.digest, "path": str(path)}
        self._context.client.report("export", data).result(REPLY_S)


class ControllerSide:
    """What the library's loop tells the controller, over a connection of the loop's own thread."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._client = context.client.attach()

    def published(self, weights: WeightsId) -> None:
        self._client.published(to_model_version(weights)).result(REPLY_S)
        self._context.wake.set()  # an export may be due

    def synced(self, report: SyncReport) -> None:
        data: dict[str, float | int | str] = {
            "model": report.weights.model,
            "version": report.weights.version,
            "group_epoch": report.epoch,
            "receivers": len(report.members),
            "bytes": report.total_bytes,
            "form_s": report.form_s,
            "send_s": report.send_s,
            "error": report.error,
        }
        self._client.report("sync", data).result(REPLY_S)
