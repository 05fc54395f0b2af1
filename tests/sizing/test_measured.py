"""From a run's files to a cost table: known costs come back, and what was not measured is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncflow.config import ResourceSettings
from asyncflow.config.errors import ConfigError
from asyncflow.config.resources import default_resources
from asyncflow.observe.records import METRICS, TIMELINE, CostSums
from asyncflow.sizing.advise import advise
from asyncflow.sizing.costs import Split
from asyncflow.sizing.fit import fit
from asyncflow.sizing.measured import measured
from tests.sizing.run_files import GROUPS, PROMPT, ROWS, STEPS, TOKENS_PER_S, calls, config, costs, lengths, write_run

SIZES = st.lists(st.integers(1, 5000), min_size=3, max_size=40).filter(lambda sizes: max(sizes) > 1.5 * min(sizes))


@given(sizes=SIZES, fixed_s=st.floats(0, 1), per_unit_s=st.floats(1e-6, 1e-2))
def test_a_line_is_fitted_back_from_its_sums(sizes: list[int], fixed_s: float, per_unit_s: float) -> None:
    line = fit(calls(fixed_s, per_unit_s, np.array(sizes, dtype=float)))
    assert line is not None
    total = fixed_s + per_unit_s * max(sizes)
    assert line.fixed_s == pytest.approx(fixed_s, abs=1e-6 * total)
    assert line.per_unit_s * max(sizes) == pytest.approx(per_unit_s * max(sizes), abs=1e-6 * total)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(
    "sums",
    [
        calls(0.1, 0.001, np.full(9, 64.0)),
        calls(1.0, -0.001, np.arange(1.0, 100.0)),
        calls(-0.01, 0.01, np.arange(2.0, 9.0)),
        calls(0.5, 0.0, np.ones(1)),
    ],
    ids=["one size", "larger is faster", "negative fixed cost", "one call"],
)
def test_where_sizes_tell_nothing_the_total_stays_right_and_it_is_said(sums: CostSums, flat: bool) -> None:
    line = fit(sums, flat=flat)
    assert line is not None
    assert line.note is not None
    assert min(line.fixed_s, line.per_unit_s) >= 0
    assert line.fixed_s * sums.calls + line.per_unit_s * sums.size == pytest.approx(sums.seconds)


def test_no_call_is_not_measured() -> None:
    assert fit(CostSums()) is None


def test_known_costs_come_back(tmp_path: Path) -> None:
    run = measured(write_run(tmp_path))
    table = run.costs
    assert (table.decode.step_s, table.decode.per_running_s, table.decode.max_running) == (pytest.approx(0.020), pytest.approx(0.0005), 16)
    assert table.decode.prefill_s * PROMPT == pytest.approx(0.001 * PROMPT / ROWS)  # one prefill a group, spread over its rows
    assert (table.actor_forward.tokens_per_s, table.actor_forward.call_s) == (pytest.approx(2000), pytest.approx(0.003))
    assert (table.ref_forward.tokens_per_s, table.ref_forward.call_s) == (pytest.approx(4000), pytest.approx(0.0, abs=1e-9))
    assert (table.train.tokens_per_s, table.train.minibatch_groups) == (pytest.approx(1000), config().algorithm.micro_batch_groups)
    assert table.train.minibatch_s * GROUPS / table.train.minibatch_groups == pytest.approx(0.3)
    assert (table.pause.seconds, table.lengths.prompt, table.split) == (pytest.approx(0.05), PROMPT, Split(1, 1, 1, 1))
    assert run.lengths.trace.tolist() == lengths().tolist()
    assert (run.staleness, run.policy, run.steps) == (1, "wait", (STEPS - 3) // 2 * 2)
    assert run.tokens_per_s == pytest.approx(TOKENS_PER_S)
    assert any("reward" in note for note in run.notes)


@pytest.mark.parametrize("key", ["rollout.decode", "actor_forward", "ref_forward", "train"])
def test_a_cost_that_was_not_measured_is_named(tmp_path: Path, key: str) -> None:
    sums = {name: value for name, value in costs().items() if name != key}
    with pytest.raises(ConfigError, match=f"{key} was not measured"):
        measured(write_run(tmp_path, sums))


@pytest.mark.parametrize("key", ["load", "publish", "actor_forward.io", "ref_forward.io", "train.io"])
def test_what_only_adds_to_the_work_is_left_out_where_it_was_not_measured_and_that_is_said(tmp_path: Path, key: str) -> None:
    every = costs() | {name: calls(0.01, 0.0, np.ones(STEPS)) for name in ("publish", "ref_forward.io", "train.io")}
    (tmp_path / "all").mkdir()
    (tmp_path / "part").mkdir()
    assert not any("goes without" in note for note in measured(write_run(tmp_path / "all", every)).notes)
    run = measured(write_run(tmp_path / "part", {name: value for name, value in every.items() if name != key}))
    assert [note for note in run.notes if "goes without" in note] == [
        f"{key} was not measured: the model goes without it, so the prediction may be too high"
    ]


def test_a_run_without_costs_lengths_or_configuration_says_which(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        measured(tmp_path)
    run_dir = write_run(tmp_path, sums={})
    with pytest.raises(ConfigError, match="no costs at all"):
        measured(run_dir)
    (run_dir / TIMELINE).unlink()
    with pytest.raises(ConfigError, match="lengths were not measured"):
        measured(run_dir)


def test_a_line_that_is_still_being_written_is_left_for_later(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path)
    with (run_dir / METRICS).open("ab") as file:
        file.write(b'{"version": 13, "t_')
    assert measured(run_dir).steps == (STEPS - 3) // 2 * 2


def test_throughput_of_a_run_that_ends_in_its_warm_up_is_not_measured(tmp_path: Path) -> None:
    run = measured(write_run(tmp_path, steps=3))
    assert run.tokens_per_s is None


def test_a_stage_that_the_run_does_not_have_is_left_out_of_the_model(tmp_path: Path) -> None:
    resources = {name: part for name, part in default_resources().items() if name != "ref_forward"}
    sums = {name: value for name, value in costs().items() if name != "ref_forward"}
    run = measured(write_run(tmp_path, sums, settings=config(resources=resources)))
    assert run.costs.split == Split(1, 1, 0, 1)
    advice = advise(run.costs, run.staleness, run.policy, devices=6, lengths=run.lengths)
    assert [stage.stage for stage in advice.stages] == ["rollout", "actor_forward", "trainer"]
    assert (advice.best.split.ref_forward, advice.best.split.devices) == (0, 6)


def test_workers_are_counted_by_the_stage_they_serve(tmp_path: Path) -> None:
    resources = {name: part for name, part in default_resources().items() if name not in ("actor_forward", "ref_forward")}
    resources["rollout"] = ResourceSettings(workers=3)
    resources["forwards"] = ResourceSettings(workers=2, stages=("actor_forward", "ref_forward"))
    run = measured(write_run(tmp_path, settings=config(resources=resources)))
    assert run.costs.split == Split(3, 2, 2, 1)
    assert any("shares the workers of forwards" in note for note in run.notes)
