"""Invariant 1: workers share nothing but the three places. Rollout and trainer run on hosts of their own (namespaces), with CURVE keys."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from asyncflow.observe.ledger_checker import check_run
from asyncflow.observe.records import EVENTS
from asyncflow.observe.replay import read_events
from tests.isolation import ISOLATED, require_namespaces

ROOT = Path(__file__).parents[2]


@pytest.mark.e2e
@pytest.mark.timeout(240)
def test_rollout_and_trainer_work_from_hosts_of_their_own_with_an_endpoint_and_a_key(tmp_path: Path) -> None:
    require_namespaces()
    command = [*ISOLATED, sys.executable, "-m", "tests.pipeline.namespaces", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["reason"] == "completed", result
    check_run(tmp_path / "run")
    events = list(read_events(tmp_path / "run" / EVENTS))
    ways = {event.member.partition("#")[0]: event.data for event in events if event.kind == "report" and event.reason == "weights"}
    assert ways["rollout-0"]["by_pull_shared"] == 0
    assert int(ways["rollout-0"]["by_broadcast"]) + int(ways["rollout-0"]["by_pull_bytes"]) > 0
    copied = [event.data["copy_shared"] for event in events if event.kind == "commit"]
    assert copied
    assert set(copied) == {0.0}  # the trainer's versions travelled as bytes: no memory was shared
