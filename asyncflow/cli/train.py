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
from asyncflow.observe.progress import RunProgress
from asyncflow.observe.records import EVENTS, Summary
from asyncflow.observe.summary import summarise, write_summary


def train(recipe: str, overrides: list[str], run_dir: str | None) -> int:
    """Run it. The last line printed is the path of summary.json. Returns 0 when the run completed, else 1. Raises ConfigError."""
    start_s = time.monotonic()
    config = load(recipe, overrides)
    check_runnable(config)
    config = with_run_dir(config, run_dir)
    with RunProgress(config.run_dir, config.total_steps) as progress:
        progress.say(f"run directory {config.run_dir}")
        progress.say(f"staleness {config.staleness}, {config.total_steps} steps of {config.batch_size} groups")
        launcher = LocalLauncher(config, progress.say, progress.tick)
        reason = launcher.run()
        progress.tick()
    summary = summarise(config.run_dir, reason, time.monotonic() - start_s, launcher.nursery.restarts)
    path = write_summary(config.run_dir, summary)
    show(summary, progress.console)
    print(path, flush=True)
    return 0 if reason == COMPLETED else 1


def with_run_dir(config: RunConfig, run_dir: str | None) -> RunConfig:
    """Make the directory of this run. Raises ConfigError for one that holds a run already: two runs never mix their logs."""
    fresh = f"{config.run.name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"  # two runs of one second have two processes
    directory = Path(run_dir) if run_dir is not None else Path(config.run.root) / fresh
    if (directory / EVENTS).exists():
        raise ConfigError(f"--run-dir {directory}: it holds a run already ({EVENTS}); their records would mix. Name another directory, or remove it")
    directory.mkdir(parents=True, exist_ok=True)
    return msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, dir=str(directory.resolve())))


def show(summary: Summary, console: Console) -> None:
    """The result as a person reads it."""
    rows = {
        "exit reason": summary.exit_reason,
        "accuracy": f"{_share(summary.accuracy_before)} → {_share(summary.accuracy_after)}",
        "seconds": f"{summary.seconds:.1f} (in all {summary.seconds_total:.1f})",
        "versions": str(summary.versions),
        "staleness max": "not measured" if summary.staleness_max is None else f"{summary.staleness_max:g}",
        "overlap": f"rollout and trainer busy at once for at least {_share(summary.overlap)} of the time",
        "ledger": ", ".join(f"{state} {count}" for state, count in summary.ledger.items()),
        "weights": f"{summary.weights_digest} exported to {summary.exported or 'nowhere'}",
        "restarts": ", ".join(f"{name} {count}" for name, count in summary.restarts.items()) or "none",
    }
    if summary.trained is not None and summary.dropped is not None:
        trained, dropped = summary.trained, summary.dropped
        rows["dropped"] = (
            f"{dropped.groups} groups of {dropped.tokens_mean:.1f} tokens at age {dropped.age_mean:.2f}; "
            f"trained: {trained.tokens_mean:.1f} tokens at age {trained.age_mean:.2f}"
        )
    for name, value in rows.items():
        console.print(f"{name:<14} {value}", markup=False)
    if summary.traceback is not None:
        console.print(summary.traceback, markup=False)


def _share(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3f}"
