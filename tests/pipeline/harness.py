"""Whole runs inside a test: the real launcher and all its processes, forked from one preloaded server for the whole session."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from asyncflow.cli.run_dir import with_run_dir
from asyncflow.config import RunConfig
from asyncflow.config.load import load
from asyncflow.launch.launcher import Launcher, Workers
from asyncflow.launch.launchers import make_launcher
from asyncflow.launch.plan import worker_specs
from asyncflow.observe.ledger_checker import check_run
from asyncflow.observe.records import EVENTS, StepRecord, Summary
from asyncflow.observe.replay import read_events
from asyncflow.observe.summary import read_metrics, summarise, write_summary
from transfer_queue.messages import Event

RECIPE = Path(__file__).with_name("config.yaml")


class Run(msgspec.Struct):
    """What a finished run left."""

    config: RunConfig
    launcher: Launcher
    said: list[str]
    summary: Summary

    @property
    def metrics(self) -> list[StepRecord]:
        return read_metrics(self.config.run_dir)

    @property
    def events(self) -> list[Event]:
        return list(read_events(self.config.run_dir / EVENTS))

    def log(self, name: str) -> str:
        return (self.config.run_dir / "logs" / f"{name}.log").read_text()


def configure(folder: Path, *overrides: str, recipe: Path = RECIPE) -> RunConfig:
    """The test recipe with overrides; models are cached in the session's folder beside `folder`."""
    return with_run_dir(load(str(recipe), [f"run.cache={folder.parent / 'cache'}", *overrides]), str(folder))


Meanwhile = Callable[[Launcher, threading.Event], None]


def run_pipeline(config: RunConfig, meanwhile: Meanwhile | None = None, workers: Workers = worker_specs) -> Run:
    """Run to the end. `meanwhile(launcher, over)` runs in a thread (killers); its failure is raised here."""
    said: list[str] = []
    launcher = make_launcher(config, said.append, workers=workers)
    over = threading.Event()
    problems: list[BaseException] = []

    def side() -> None:
        try:
            assert meanwhile is not None
            meanwhile(launcher, over)
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=side, daemon=True)
    if meanwhile is not None:
        thread.start()
    start_s = time.monotonic()
    reason = launcher.run()
    over.set()
    if meanwhile is not None:
        thread.join(30)
    if problems:
        raise problems[0]
    summary = summarise(config.run_dir, reason, time.monotonic() - start_s, launcher.nursery.restarts)
    write_summary(config.run_dir, summary)
    return Run(launcher.config, launcher, said, summary)


def assert_completed(run: Run) -> None:
    """Completed, and an independent replay of the event log agrees with every ledger that was written."""
    assert run.summary.exit_reason == "completed", f"{run.summary.exit_reason}\n" + "\n".join(run.said)
    check_run(run.config.run_dir)
