"""What is written for TensorBoard is read back with TensorBoard's own reader."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from asyncflow.observe.summary import summarise
from asyncflow.observe.writers.interface import WriterContext
from asyncflow.observe.writers.tensorboard import FOLDER, make
from tests.observe.live.run_files import run_config, step
from tests.observe.writers.own import Words


def test_steps_evaluations_configuration_and_summary_are_there(tmp_path: Path) -> None:
    config = run_config(tmp_path, "staleness=0")
    writer = make(WriterContext(config=config, run_dir=config.run_dir, say=Words().say))
    writer.step(step(1, reward_mean=0.0))
    writer.step(step(2, reward_mean=None, permits=-1))
    writer.step(step(3))
    writer.evaluation(0, 0.25, 1.5)
    writer.close(summarise(config.run_dir, "completed", 9.0, {}))
    found = EventAccumulator(str(config.run_dir / FOLDER))
    found.Reload()
    assert [(point.step, point.value) for point in found.Scalars("reward/mean")] == [(1, 0.0), (3, pytest.approx(0.015))]  # None is no 0
    assert [point.step for point in found.Scalars("flow/permits_free")] == [1, 3]  # -1 is no number of permits
    assert [(point.step, point.value) for point in found.Scalars("evaluation/accuracy")] == [(0, 0.25)]
    assert [point.value for point in found.Scalars("groups/dropped_stale")] == [3, 3, 3]
    names = set(found.scalars.Keys())
    assert {"staleness/max", "throughput/tokens_per_s", "workers/rollout_busy", "stages/train_ready_rows", "trainer/loss"} <= names
    assert "trainer/reward_mean" not in names
    assert all(math.isfinite(point.value) for name in names for point in found.Scalars(name))
    assert set(found.Tags()["tensors"]) == {"config", "summary"}
    text = found.Tensors("config")[0].tensor_proto.string_val[0].decode()
    assert '"staleness": 0' in text


def test_neither_torch_nor_tensorflow_is_loaded_for_it() -> None:
    code = "import sys, asyncflow.observe.writers.tensorboard; sys.exit(bool({'torch', 'tensorflow'} & sys.modules.keys()))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
