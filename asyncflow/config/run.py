"""Settings of the run as a whole: its name, its seed, where it writes and when it ends."""

from __future__ import annotations

from typing import Literal

from asyncflow.config.settings import Settings

LogLevel = Literal["debug", "info", "warning", "error"]


class RunSettings(Settings, frozen=True):
    """What one run is and when it is over. Exactly one of `steps` and `total_groups` is given."""

    name: str = "run"  # Name of the run, first part of its directory.
    seed: int = 1  # Every random number of the run derives from it: data order, sampling, initial weights.
    root: str = "runs"  # Parent of run directories; a run writes to `root/name-TIME` unless --run-dir names another place.
    dir: str = ""  # Directory of this run. Filled in by the launcher; leave it empty.
    cache: str = ".cache/asyncflow"  # Where warm-started models are kept between runs, under the hash of what made them.
    steps: int | None = 100  # Optimizer steps (versions) to train; each is one global batch of `batch_size` groups.
    total_groups: int | None = None  # Groups to train in all, where `steps` is null; the last batch may be short.
    log_level: LogLevel = "info"  # Least severe messages that workers write to `logs/NAME.log`.
