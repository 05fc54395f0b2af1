"""`asyncflow train`: from a recipe to a finished run and its summary."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
from rich.console import Console

from asyncflow.config import RunConfig
from asyncflow.config.check import check_runnable
from asyncflow.config.errors import ConfigError
from asyncflow.config.load import load
from asyncflow.launch.local import COMPLETED, LocalLauncher
from asyncflow.launch.plan import client_key
from asyncflow.observe.live.view import RunView
from asyncflow.observe.records import EVENTS, STALL, Summary
from asyncflow.observe.stall import load_stall
from asyncflow.observe.summary import summarise, write_summary
from asyncflow.observe.writers.configured import configured
from transfer_queue.waits import render


def train(recipe: str, overrides: list[str], run_dir: str | None) -> int:
    """Run it. The last line printed is the path of summary.json. Returns 0 when the run completed, else 1. Raises ConfigError."""
    start_s = time.monotonic()
    config = load(recipe, overrides)
    check_runnable(config)
    config = with_run_dir(config, run_dir)
    view = RunView(config, client_key(config))
    view.say(f"run directory {config.run_dir}")
    staleness = "unbounded (null)" if config.staleness is None else config.staleness
    view.say(f"staleness {staleness}, {config.total_steps} steps of {config.batch_size} groups")
    with configured(config, view.say) as writers:
        with view:
            launcher = LocalLauncher(config, view.say)
            reason = launcher.run()
            view.end(reason)
        summary = summarise(config.run_dir, reason, time.monotonic() - start_s, launcher.nursery.restarts)
        path = write_summary(config.run_dir, summary)
        show(summary, view.console)
        writers.close(summary)
    print(path, flush=True)
    return 0 if reason == COMPLETED else 1


def with_run_dir(config: RunConfig, run_dir: str | None) -> RunConfig:
    """Make the directory of this run. Raises ConfigError where that fails, or for one that holds a run already: two runs never mix their logs."""
    fresh = f"{config.run.name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"  # two runs of one second have two processes
    directory = Path(run_dir) if run_dir is not None else Path(config.run.root) / fresh
    setting = f"run.root = {config.run.root}" if run_dir is None else f"--run-dir {run_dir}"
    try:
        holds_a_run = (directory / EVENTS).exists()
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        raise ConfigError(f"{setting}: no directory {directory} can be made there ({error}), and a run must write. Name another place") from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ConfigError(f"{setting}: nothing can be written to {directory}, and a run must write. Name another place, or change its permissions")
    if holds_a_run:
        raise ConfigError(f"--run-dir {directory}: it holds a run already ({EVENTS}); their records would mix. Name another directory, or remove it")
    return msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, dir=str(directory.resolve())))


def show(summary: Summary, console: Console) -> None:
    """The result as a person reads it. What was not measured has no row."""
    rows = {"exit reason": summary.exit_reason, **_measured(summary), **_weights(summary)}
    rows["restarts"] = ", ".join(f"{name} {count}" for name, count in summary.restarts.items()) or "none"
    for name, value in rows.items():
        console.print(f"{name:<14} {value}", markup=False)
    if summary.traceback is not None:
        console.print(summary.traceback, markup=False)
    stall = load_stall(Path(summary.run_dir))
    if stall is not None:
        console.print(f"\n{render(stall)}\nsaved as {Path(summary.run_dir) / STALL}", markup=False)


def _measured(summary: Summary) -> dict[str, str]:
    rows: dict[str, str] = {}
    if summary.accuracy_before is not None or summary.accuracy_after is not None:
        rows["accuracy"] = f"{_share(summary.accuracy_before)} → {_share(summary.accuracy_after)}"
    rows["seconds"] = f"{summary.seconds:.1f} (in all {summary.seconds_total:.1f})"
    rows["versions"] = str(summary.versions)
    if summary.staleness_max is not None:
        rows["staleness max"] = f"{summary.staleness_max:g}"
    if summary.overlap is not None:
        rows["overlap"] = f"rollout and trainer busy at once for at least {summary.overlap:.3f} of the time"
    if summary.ledger:
        rows["ledger"] = ", ".join(f"{state} {count}" for state, count in summary.ledger.items())
    if summary.trained is not None and summary.dropped is not None:
        trained, dropped = summary.trained, summary.dropped
        rows["dropped"] = (
            f"{dropped.groups} groups of {dropped.tokens_mean:.1f} tokens at age {dropped.age_mean:.2f}; "
            f"trained: {trained.tokens_mean:.1f} tokens at age {trained.age_mean:.2f}"
        )
    return rows


def _weights(summary: Summary) -> dict[str, str]:
    """Digest and export with the version of each: they differ where the run ended between two exports."""
    rows: dict[str, str] = {}
    if summary.weights_digest is not None:
        # a commit comes before its publication: only a completed run surely published the last version
        version = f"version {summary.versions}" if summary.exit_reason == COMPLETED else f"last published, of {summary.versions} versions"
        rows["weights"] = f"{summary.weights_digest} ({version})"
    if summary.exported is not None:
        rows["exported"] = f"{summary.exported} (version {summary.exported_version})"
    return rows


def _share(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3f}"
