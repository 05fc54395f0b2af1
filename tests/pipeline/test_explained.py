"""A run does what `asyncflow explain` said of it: files, permits, bytes, evaluated and exported versions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from asyncflow.config.explain.explanation import explain
from asyncflow.config.load import load
from asyncflow.observe.records import EVENTS
from asyncflow.observe.replay import read_events
from asyncflow.observe.summary import read_metrics

ROOT = Path(__file__).parents[2]
RECIPE = str(ROOT / "tests/pipeline/config.yaml")
OVERRIDES = ["run.steps=3", "staleness=1", "evaluation.every=2", "evaluation.items=8", "weights.export_every=2"]


@pytest.mark.tools
def test_a_run_leaves_the_files_and_numbers_that_were_explained(tmp_path: Path) -> None:
    overrides = [*OVERRIDES, f"run.cache={tmp_path / 'cache'}"]
    said = explain(load(RECIPE, overrides))
    run = tmp_path / "run"
    command = [sys.executable, "-m", "asyncflow.cli.main", "train", RECIPE, *overrides, "--run-dir", str(run)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=100)
    left = {path.name + ("/" if path.is_dir() else "") for path in run.iterdir()}
    assert left == {file.name for file in said.storage.files if "without progress" not in file.when}
    roles = [role for role in said.processes.roles if role.name != "controller"]
    processes = {f"{role.name}-{number}" for role in roles for number in range(role.workers)}
    assert {path.stem for path in (run / "logs").iterdir()} == processes | {"prepare", "controller"}
    for step in read_metrics(run):
        assert step.permits + step.open_groups == said.admission.permits
        assert step.queue_bytes == step.open_groups * said.memory.samples.group
    reports = [event for event in read_events(run / EVENTS) if event.kind == "report"]
    assert [event.data["version"] for event in reports if event.reason == "evaluation"] == said.schedule.evaluation.versions
    assert [event.data["version"] for event in reports if event.reason == "export"] == said.schedule.export.versions
    assert {path.name for path in (run / "weights").iterdir()} == {f"policy-0.{version}" for version in said.schedule.export.versions}
