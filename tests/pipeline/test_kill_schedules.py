"""Fifty kills and more a restartable role, aimed at the moments that hurt: inside a put, another's commit, a broadcast, a load."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from asyncflow.engines.reference import ReferenceLoop
from asyncflow.launch.local import LocalLauncher
from tests.pipeline.harness import assert_completed, configure, run_pipeline
from tests.pipeline.hunting import Hunter, Moment
from tests.pipeline.model import prepare

KILLS = 56
STEPS = 90  # the kills took 14 to 39 steps of each run
WITH_WEIGHTS: list[Moment] = ["any", "put", "load", "receive", "commit of another"]
WITHOUT: list[Moment] = ["any", "put", "commit of another"]


@pytest.mark.e2e
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("name", "moments", "staleness", "policy"),
    [
        ("rollout-0", WITH_WEIGHTS, 2, "wait"),
        ("actor_forward-0", WITH_WEIGHTS, 0, "wait"),
        ("ref_forward-0", WITHOUT, 1, "drop"),
        ("scorer-0", WITHOUT, 2, "drop"),
        ("source-0", WITHOUT, 0, "wait"),
    ],
)
def test_many_kills_of_a_role_lose_nothing(tmp_path: Path, name: str, moments: list[Moment], staleness: int, policy: str) -> None:
    hunters: list[Hunter] = []

    def hunt(launcher: LocalLauncher, over: threading.Event) -> None:
        hunters.append(Hunter(launcher, name, moments, seed=23))
        hunters[0].hunt(KILLS, over)

    overrides = (f"staleness={staleness}", f"flow.policy={policy}", f"run.steps={STEPS}", "limits.restarts=100000", "data.prompts_bound=8")
    run = run_pipeline(configure(tmp_path / "run", *overrides), hunt)
    kills = hunters[0].kills
    (run.config.run_dir / "kills.jsonl").write_bytes(b"".join(msgspec.json.encode(kill) + b"\n" for kill in kills))
    hits = Counter(kill.wanted for kill in kills if kill.hit)
    print(f"{name}: {len(kills)} kills, hits {dict(hits)}")
    assert_completed(run)
    assert len(kills) >= 50
    assert all(hits[moment] >= 5 for moment in moments if moment != "any"), hits
    assert run.summary.restarts[name] >= len(kills) - 1
    assert run.summary.staleness_max is not None
    assert run.summary.staleness_max <= staleness
    if staleness == 0:
        config = configure(tmp_path / "reference", *overrides)
        assert [record.digest for record in ReferenceLoop(config, prepare(config, "policy")).run(STEPS)][-1] == run.summary.weights_digest
