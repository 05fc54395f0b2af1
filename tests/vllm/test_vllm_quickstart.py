"""The quickstart through vLLM, as a user starts it: from cold it learns what it learns through the embedded engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from leftovers import marked, traces

from asyncflow.observe.ledger_checker import check_run
from asyncflow.observe.records import EVENTS, SUMMARY, Summary
from asyncflow.observe.replay import whole_events
from tests.pace import slowdown

ROOT = Path(__file__).parents[2]
MOST_S = 420.0  # of the whole command, warm start and vLLM's start included; where the machine is slowed down, as many times more
MARK = "ASYNCFLOW_TEST_MARK"  # in the environment of every process of the run
EVERY = 30


@pytest.mark.vllm
@pytest.mark.timeout(1500)
def test_the_quickstart_through_vllm_reaches_the_accuracy_of_the_embedded_engine_and_leaves_nothing_behind(tmp_path: Path) -> None:
    files, before = traces(), slowdown()
    summary = train(tmp_path)
    slower = max(before, slowdown())
    print(summary, f"slowdown {slower:.2f}")
    assert summary.accuracy_before is not None
    assert summary.accuracy_after is not None
    assert 0.2 <= summary.accuracy_before <= 0.5
    assert summary.accuracy_after >= 0.9
    assert summary.staleness_max is not None
    assert summary.staleness_max <= 2
    assert summary.ledger == {"trained": 120 * 32}
    assert summary.restarts == {}
    assert summary.mixed_version_share is not None
    assert summary.mixed_version_share > 0  # weights changed under running sequences
    assert summary.seconds_total <= MOST_S * slower
    assert_labelled(tmp_path / "run", summary)
    assert marked(MARK, str(tmp_path)) == []
    assert traces() - files == set()


def train(folder: Path) -> Summary:
    run_dir = folder / "run"
    command = [sys.executable, "-m", "asyncflow.cli.main", "train", "recipes/quickstart/vllm.yaml", f"run.cache={folder}", "--run-dir", str(run_dir)]
    environment = os.environ | {MARK: str(folder)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1400, check=False)
    logs = "".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in sorted((run_dir / "logs").glob("*")) if log.stat().st_size)
    assert done.returncode == 0, done.stdout + done.stderr + logs
    check_run(run_dir)
    return msgspec.json.decode((run_dir / SUMMARY).read_bytes(), type=Summary)


def assert_labelled(run_dir: Path, summary: Summary) -> None:
    """Every due version was evaluated, version 0 and the last one too, and the label is that of weights that were published."""
    events = list(whole_events(run_dir / EVENTS))
    published = {event.version: event.data["digest"] for event in events if event.kind == "published"}
    evaluated = {event.data["version"]: event.data["digest"] for event in events if event.kind == "report" and "accuracy" in event.data}
    assert evaluated.keys() == summary.evaluations.keys()
    assert {0, summary.versions} <= evaluated.keys()
    assert len(evaluated) >= summary.versions // EVERY
    assert all(published[version] == digest for version, digest in evaluated.items())
