"""The directory that a run writes to: made for it, and for it alone."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from asyncflow.config import RunConfig
from asyncflow.config.errors import ConfigError
from asyncflow.observe.records import EVENTS, JOURNAL


def with_run_dir(config: RunConfig, run_dir: str | None) -> RunConfig:
    """Make the directory of this run. Raises ConfigError where that fails, or for one that holds a run already: two runs never mix their logs."""
    fresh = f"{config.run.name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"  # two runs of one second have two processes
    directory = Path(run_dir) if run_dir is not None else Path(config.run.root) / fresh
    setting = f"run.root = {config.run.root}" if run_dir is None else f"--run-dir {run_dir}"
    try:
        str(directory.resolve()).encode()  # its records are UTF-8
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a name with a null character, or of bytes that are no UTF-8
        raise ConfigError(f"{setting}: no directory {str(directory)!r} can be made there ({error}); a run must write. Name another place") from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ConfigError(f"{setting}: nothing can be written to {directory}, and a run must write. Name another place, or change its permissions")
    refuse_a_run(directory)
    return msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, dir=str(directory.resolve())))


def refuse_a_run(directory: Path) -> None:
    """Raises ConfigError where a run has written already."""
    for name in (EVENTS, JOURNAL):  # with the latter, the controller would take itself for one that comes back
        if (directory / name).exists():
            raise ConfigError(f"--run-dir {directory}: it holds a run already ({name}); their records would mix. Name another, or remove it")
