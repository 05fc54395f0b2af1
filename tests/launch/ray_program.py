"""`python -m tests.launch.ray_program FOLDER`: a launcher of Ray in a process of its own, without torch. Its last line is the exit reason."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from asyncflow.config import RunConfig
from asyncflow.engines.emulated.config import emulated_config
from asyncflow.launch.launchers import make_launcher
from asyncflow.sizing.costs import Split
from asyncflow.sizing.load import DEFAULT_TABLE, load_costs


def quick_config(folder: Path) -> RunConfig:
    """A run of emulated workers that goes on for longer than any test."""
    costs = load_costs(DEFAULT_TABLE)
    split = Split(rollout=costs.decode.devices, actor_forward=1, ref_forward=1, trainer=1)
    config = emulated_config(costs, split, staleness=1, policy="wait", steps=1000, time_scale=25.0, run_dir=folder)
    return msgspec.structs.replace(config, launch="ray")


if __name__ == "__main__":
    run_dir = Path(sys.argv[1])
    run_dir.mkdir(exist_ok=True)
    print(make_launcher(quick_config(run_dir), lambda line: print(line, flush=True)).run(), flush=True)
