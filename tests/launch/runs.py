"""A run whose workers are those of `tests.launch.workers`, with the real launcher, controller and shards around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from asyncflow.config import RunConfig
from asyncflow.contracts.worker import WorkerArgs
from asyncflow.launch.child import ChildSpec
from asyncflow.launch.local import LocalLauncher
from asyncflow.launch.plan import log_of
from tests.config.recipes import MINIMAL, load_text

Cast = dict[str, tuple[str, bool, tuple[Any, ...]]]  # name → (function in workers, restartable, further arguments)

# whoever runs first starts the fork server that the whole test session shares, so these tests preload what the others need
TASK = "task.path='asyncflow.data.number_sorting:NumberSorting'"


def run_config(folder: Path, *overrides: str) -> RunConfig:
    """A configuration whose model directory exists, with short limits."""
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text("{}")
    limits = ("limits.drain_s=2", "limits.start_s=20", "limits.restarts=2", TASK, f"models.policy.path={model}")
    config = load_text(folder, MINIMAL, *limits, *overrides)
    run_dir = folder / "run"
    run_dir.mkdir()
    return msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, dir=str(run_dir)))


def launcher(config: RunConfig, cast: Cast, said: list[str]) -> LocalLauncher:
    """A launcher for the given cast; what it says is appended to `said`."""

    def workers(config: RunConfig, url: str, key: str | None) -> list[ChildSpec]:
        return [
            ChildSpec(
                name=name,
                role=name.rpartition("-")[0],
                entry=f"tests.launch.workers:{function}",
                args=(WorkerArgs(role=name.rpartition("-")[0], name=name, controller=url), *more),
                log=log_of(config, name),
                restartable=restartable,
            )
            for name, (function, restartable, more) in cast.items()
        ]

    return LocalLauncher(config, said.append, workers=workers)
