"""The benchmark of the pipeline from end to end, in small."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import run

import msgspec
import pytest

from asyncflow.sizing.simulate import simulate
from benchmarks.emulated_run import Measured, Plan
from benchmarks.harness import Row
from benchmarks.pipeline import GOAL, _unclaimed, quick, rows_of

ROOT = Path(__file__).parents[2]


def measured(idle: float, seconds_factor: float = 1.0, torch: list[str] | None = None, judged: bool = True) -> list[Row]:
    """Rows of a run that took so many times as long as the simulation."""
    costs = quick().tables["quick"]
    perfect = simulate(costs, costs.split, 1, "wait", steps=2)
    plan = Plan(costs, costs.split, staleness=1, policy="wait", warmup=3, steps=2, time_scale=10.0)
    tokens = sum(step.tokens for step in perfect.measured)
    found = Measured(
        plan, perfect.seconds * seconds_factor, tokens, 64.0, 0.9, 1.0, 0, idle, own_share=0.4, processes=9, start_real_s=1.0, memory_mib=99.0,
        torch=torch or [],
    )  # fmt: skip
    return rows_of(found, perfect, "x", _unclaimed(msgspec.structs.replace(quick(), judged=judged), found))


def test_throughput_is_claimed_only_where_processors_stayed_idle() -> None:
    assert measured(idle=0.5)[0].met is True
    assert measured(idle=0.5, seconds_factor=1.1)[0].met is False
    busy = measured(idle=0.29)[0]
    assert busy.met is None
    assert "not claimed" in busy.note
    assert busy.goal == GOAL
    assert measured(idle=0.5, seconds_factor=1.1, judged=False)[0].met is None, "--quick says nothing about throughput"


def test_overhead_is_in_this_machines_time_and_torch_in_a_worker_is_a_failure() -> None:
    slow, fast = measured(idle=0.5, seconds_factor=1.1)[1], measured(idle=0.5)[1]
    assert fast.value == pytest.approx(0.0)
    assert slow.value is not None
    assert slow.value > 0
    assert [row.met for row in measured(idle=0.5, torch=["rollout-0"])][-1] is False


@pytest.mark.tools
def test_the_quick_benchmark_runs_the_real_control_plane_without_torch(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.json"
    done = run([sys.executable, "benchmarks/pipeline.py", "--quick", "--json", str(file)], cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert file.exists(), done.stderr
    rows = {row.name: row for row in msgspec.json.decode(msgspec.json.encode(msgspec.json.decode(file.read_bytes())["rows"]), type=list[Row])}
    for policy in ("wait", "drop"):
        name = f"quick 4-1-1-2 staleness 1 {policy}"
        ratio = rows[f"{name}: real control plane"].ratio
        assert ratio is not None
        assert 0.3 < ratio < 1.3
        assert rows[f"{name}: staleness max"].met is True
        assert rows[f"{name}: processes with torch"].value == 0
