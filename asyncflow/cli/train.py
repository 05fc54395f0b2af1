"""`asyncflow train`: from a recipe to a finished run and its summary."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
from rich.console import Console

from asyncflow.cli.run_dir import with_run_dir
from asyncflow.config import RunConfig
from asyncflow.config.check import check_runnable
from asyncflow.config.load import load
from asyncflow.launch.launchers import make_launcher
from asyncflow.launch.plan import client_key
from asyncflow.observe.live.view import RunView
from asyncflow.observe.records import COMPLETED, STALL, SUMMARY, Summary
from asyncflow.observe.stall import load_stall
from asyncflow.observe.summary import summarise, write_summary
from asyncflow.observe.writers.configured import configured
from transfer_queue.operation.signals import Signals
from transfer_queue.waits import render


def train(recipe: str, overrides: list[str], run_dir: str | None) -> int:
    """Run it. The last line printed is the path of summary.json. Returns 0 when the run completed, else 1. Raises ConfigError."""
    config = load(recipe, overrides)
    check_runnable(config)
    return train_config(config, run_dir)


def train_config(config: RunConfig, run_dir: str | None) -> int:
    """See `train`; of a configuration that was checked, wherever it comes from."""
    start_s = time.monotonic()
    config = with_run_dir(config, run_dir)
    view = RunView(config, client_key(config))
    view.say(f"run directory {config.run_dir}")
    staleness = "unbounded (null)" if config.staleness is None else config.staleness
    view.say(f"staleness {staleness}, {config.total_steps} steps of {config.batch_size} groups")
    with configured(config, view.say) as writers:
        launcher = make_launcher(config, view.say)
        with Signals():  # one more Ctrl-C must not cost the summary; the launcher, while it runs, takes them itself
            with view:
                reason = launcher.run()
                view.end(reason)
            summary = summarise(config.run_dir, reason, time.monotonic() - start_s, launcher.nursery.restarts)
            path = _write(summary, view)
        show(summary, view.console)
        writers.close(summary)
    if path is None:
        return 1
    print(path, flush=True)
    return 0 if summary.exit_reason == COMPLETED else 1


def _write(summary: Summary, view: RunView) -> Path | None:
    """None where it cannot be written: then it is only shown."""
    try:
        return write_summary(Path(summary.run_dir), summary)
    except OSError as error:
        view.say(f"{Path(summary.run_dir) / SUMMARY} cannot be written ({error.strerror or error}), so this is all that is left of it. Free the disk")
        return None


def show(summary: Summary, console: Console) -> None:
    """The result as a person reads it. What was not measured has no row."""
    rows = {"exit reason": summary.exit_reason, **_measured(summary), **_weights(summary)}
    rows["restarts"] = ", ".join(f"{name} {count}" for name, count in summary.restarts.items()) or "none"
    for name, value in rows.items():
        console.print(f"{name:<14} {value}", markup=False)
    if summary.traceback is not None:
        console.print(summary.traceback, markup=False)
    _show_stall(Path(summary.run_dir) / STALL, console)


def _show_stall(path: Path, console: Console) -> None:
    """Where there is one. A file that cannot be read hides nothing else."""
    try:
        stall = load_stall(path.parent)
    except (OSError, RecursionError, msgspec.DecodeError) as error:
        console.print(f"\n{path} cannot be read: {error}", markup=False)
        return
    if stall is not None:
        console.print(f"\n{render(stall)}\nsaved as {path}", markup=False)


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
