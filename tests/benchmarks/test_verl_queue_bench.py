"""What the benchmark of verl's V1 trainer makes of the figures that runs leave. The runs themselves need verl: tests/verl/test_v1_runs.py."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from benchmarks.verl_queue import Run, rows
from tests.verl.timed_queue import queue_seconds
from tests.verl.v1_settings import V1

FIRST, LAST = 2, 4


def written(folder: Path, queue: str, step_s: float, get_s: float) -> V1:
    """A run of five steps: each asks the queue twice in the trainer, once in a worker, and polls; an agent loop writes beside them."""
    asked = V1("sync", LAST + 1, queue, "plain", folder, folder)
    asked.times.mkdir(parents=True)
    times = {"1": [], "2": [], "3": []}
    for step in range(1, LAST + 2):
        began = 100.0 + step * step_s
        times["1"] += [{"role": "TaskRunnerV1", "step": step, "began": began + 0.01 * turn} for turn in range(2)]
        calls = ("kv_batch_get", "kv_batch_put", "kv_list")
        times["1"] += [{"role": "TaskRunnerV1", "call": call, "began": began + 0.1, "s": get_s} for call in calls]
        times["2"] += [{"role": "WorkerDict", "call": "async_get_data", "began": began + 0.2, "s": get_s}]
        times["3"] += [{"role": "AgentLoopWorkerTQ", "call": "async_kv_batch_put", "began": began + 0.2, "s": 50.0}]
    for pid, lines in times.items():
        (asked.times / f"{pid}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    metrics = [{"training/global_step": step, "critic/rewards/mean": 0.5, "perf/total_num_tokens": 1000} for step in range(1, LAST + 2)]
    asked.metrics.write_text("".join(json.dumps({"step": i, "data": data}) + "\n" for i, data in enumerate([{"val": 1.0}, *metrics])))
    return asked


def test_a_step_goes_from_its_first_mark_to_the_next_ones_and_holds_the_calls_that_began_in_it(tmp_path: Path) -> None:
    run = Run.read(written(tmp_path / "a", "ours", step_s=2.0, get_s=0.1), FIRST, LAST)
    assert run.step_s == pytest.approx([2.0] * 3)
    assert run.tokens == [1000] * 3
    assert run.queue_s == pytest.approx([0.3] * 3), "two in the trainer and one in a worker: neither polling nor what agent loops write"


def test_medians_of_all_steps_are_compared_and_the_goal_is_the_baselines_speed(tmp_path: Path) -> None:
    def read(name: str, step_s: float, get_s: float) -> Run:
        return Run.read(written(tmp_path / name, name, step_s, get_s), FIRST, LAST)

    quick, slow = [read("a", 2.0, 0.1), read("b", 4.0, 0.1)], [read("c", 5.0, 0.2), read("d", 10.0, 0.2)]
    speed, spent, share = rows({"ours": quick, "baseline": slow})
    assert speed.value == pytest.approx(statistics.median([500.0] * 3 + [250.0] * 3))
    assert (speed.ratio, speed.met) == (pytest.approx(2.5), True)
    assert (spent.value, spent.reference) == (pytest.approx(0.3), pytest.approx(0.6))
    assert share.value == pytest.approx(statistics.median([0.15] * 3 + [0.075] * 3))
    assert next(iter(rows({"ours": slow, "baseline": quick}))).met is False


def test_a_step_without_an_end_and_a_run_that_was_not_timed_are_refused(tmp_path: Path) -> None:
    asked = written(tmp_path / "a", "ours", step_s=2.0, get_s=0.1)
    with pytest.raises(ValueError, match=r"no mark of the steps \[6\]"):
        Run.read(asked, FIRST, LAST + 1)
    for path in asked.times.glob("[12].jsonl"):
        path.unlink()
    with pytest.raises(ValueError, match="was not timed"):
        Run.read(asked, FIRST, LAST)
    assert queue_seconds(asked.times, FIRST, LAST) == {}
