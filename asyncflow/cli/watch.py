"""`asyncflow watch RUN`: the view of a run from another terminal, while it runs or after it ended. It reads; the run does not notice."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import msgspec

from asyncflow.cli.train import show
from asyncflow.config import RunConfig
from asyncflow.config.errors import ConfigError
from asyncflow.flow.window import window
from asyncflow.launch.plan import client_key
from asyncflow.observe.live.view import FRAME_S, RunView
from asyncflow.observe.records import COMPLETED, EVENTS, SUMMARY, Summary

SILENT_S = 30.0  # a run whose controller is unreachable and whose files stand still for so long was killed
ANSWER_S = 10.0  # in which a controller that lives has answered
CONFIG = "config.json"
KILLED = f"no {SUMMARY}, no answer of its controller, and nothing was written for {SILENT_S:g} s: the run was killed as a whole"


def watch(run_dir: str, once: bool = False, key: str | None = None) -> int:
    """Until the run ends or Ctrl-C. `once`: show its state now and return. Returns 0, or 1 for a run that failed. Raises ConfigError."""
    directory = Path(run_dir)
    config = config_of(directory)
    view = RunView(config, key or client_key(config), ask=True)
    if once:
        summary = read_summary(directory)
        if summary is not None:
            view.end(summary.exit_reason)
        view.show_now()
        if summary is None and dead(directory, view):
            view.say(KILLED)
        return 0
    try:
        with view:
            reason, summary = follow(directory, view)
            view.end(reason)
    except KeyboardInterrupt:
        return 0  # only the watching ends
    if summary is None:
        view.say(reason)
        return 1
    show(summary, view.console)
    return 0 if summary.exit_reason == COMPLETED else 1


def config_of(directory: Path) -> RunConfig:
    """The resolved configuration of the run, with `directory` as its place: it may have been moved. Raises ConfigError."""
    try:
        config = RunConfig.decode((directory / CONFIG).read_bytes())
    except FileNotFoundError:
        raise ConfigError(
            f"RUN = {directory}: it holds no {CONFIG}, which a run writes once its weights are prepared, so there is nothing to watch. "
            "Fix: name the directory that `asyncflow train` printed, or wait until it is there"
        ) from None
    except (OSError, RecursionError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"RUN = {directory}: its {CONFIG} cannot be read ({error}), so its view cannot be made. Fix: watch it with the release that wrote it"
        ) from None
    try:
        window(config), config.total_steps, config.places()  # what a view derives
    except (TypeError, ValueError, ArithmeticError, AssertionError, MemoryError) as error:
        raise ConfigError(f"RUN = {directory}: its {CONFIG} is that of no run ({error}), so its view cannot be made. Fix: restore the file") from None
    return msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, dir=str(directory.resolve())))


def follow(directory: Path, view: RunView) -> tuple[str, Summary | None]:
    """Wait for the end of the run. Returns its reason, and the summary where there is one."""
    pause, begun_s = threading.Event(), time.monotonic()  # nobody sets it
    while True:
        summary = read_summary(directory)
        if summary is not None:
            return summary.exit_reason, summary
        if dead(directory, view) and time.monotonic() - begun_s > ANSWER_S:
            return KILLED, None
        pause.wait(FRAME_S)


def dead(directory: Path, view: RunView) -> bool:
    """Nothing is written and nobody answers: of a run without a summary, all that is left are its files."""
    answered_s = view.status.age_s()
    return quiet_s(directory) > SILENT_S and (answered_s is None or answered_s > SILENT_S)


def read_summary(directory: Path) -> Summary | None:
    """None while the run goes on."""
    try:
        return msgspec.json.decode((directory / SUMMARY).read_bytes(), type=Summary)
    except FileNotFoundError:
        return None
    except (OSError, RecursionError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"RUN = {directory}: its {SUMMARY} cannot be read ({error}), so its end cannot be shown. Fix: watch it with the release that wrote it"
        ) from None


def quiet_s(directory: Path) -> float:
    """Seconds since the run wrote anything. Files come into being in this order, and each is written to till the end."""
    times = [0.0]
    for name in (CONFIG, EVENTS):
        with contextlib.suppress(OSError):  # not there yet, or just removed
            times.append((directory / name).stat().st_mtime)
    return time.time() - max(times)
