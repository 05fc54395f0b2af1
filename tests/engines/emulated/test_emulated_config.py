"""The configuration of an emulated run: what the split says, and no torch anywhere."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from subprocess import run

import pytest

from asyncflow.config import RunConfig
from asyncflow.config.check import check_runnable
from asyncflow.engines.emulated.config import emulated_config
from asyncflow.engines.emulated.settings import emulation_of
from asyncflow.flow.bytes import group_bytes
from asyncflow.launch.forkserver import TORCH_MODULES, preload
from asyncflow.sizing.costs import Split
from asyncflow.sizing.load import DEFAULT_TABLE, load_costs

SPLIT = Split(rollout=52, actor_forward=2, ref_forward=3, trainer=7)


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return emulated_config(load_costs(DEFAULT_TABLE), SPLIT, staleness=4, policy="drop", steps=9, time_scale=25.0, run_dir=tmp_path)


def test_workers_are_what_the_split_says_and_the_table_reaches_each_of_them(config: RunConfig) -> None:
    check_runnable(config)
    workers = Counter(place.role for place in config.places())
    assert (workers["rollout"], workers["actor_forward"], workers["ref_forward"], workers["trainer"]) == (26, 2, 3, 1)
    emulation = emulation_of(RunConfig.decode(config.encode()))
    assert emulation.costs.split == SPLIT
    assert emulation.time_scale == 25.0


def test_bytes_are_no_limit_for_the_window(config: RunConfig) -> None:
    assert config.flow.budget_bytes >= (4 + 1) * config.batch_size * group_bytes(config)


def test_nothing_that_an_emulated_worker_loads_imports_torch(config: RunConfig) -> None:
    modules = preload(config)
    assert not set(TORCH_MODULES) & set(modules)
    loops = [f"asyncflow.workers.{name}" for name in ("rollout", "trainer", "publisher", "stage", "source", "follower")]
    engines = [path.partition(":")[0] for path in (config.rollout.engine, config.algorithm.engine, config.models["policy"].prepare or "")]
    code = f"import sys\nfor name in {[*modules, *loops, *engines]}: __import__(name)\nassert 'torch' not in sys.modules"
    done = run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_run_that_computes_with_torch_still_preloads_it() -> None:
    assert set(TORCH_MODULES) < set(preload(RunConfig()))
