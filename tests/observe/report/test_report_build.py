"""What the report says of a run is what the run's files say."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from asyncflow.config.errors import ConfigError
from asyncflow.observe.records import EVENTS, METRICS, STALL, SUMMARY, TIMELINE, StepRecord, Summary
from asyncflow.observe.replay import read_events
from asyncflow.observe.report.build import report_of
from asyncflow.observe.report.columns import Columns
from asyncflow.observe.report.data import Chart, Figure, RunReport
from asyncflow.observe.report.headline import difference
from asyncflow.observe.report.thin import POINTS_BOUND, thinned
from asyncflow.observe.summary import overlap, read_metrics
from tests.observe.report.run_files import timeline, unfinish, whole_run
from tests.observe.small_run import record_run
from transfer_queue.messages import Event


def chart(report: RunReport, key: str) -> Chart:
    return next(candidate for candidate in report.charts if candidate.key == key)


def curve(report: RunReport, key: str, name: str) -> list[float | None]:
    return next(candidate.y for candidate in chart(report, key).curves if candidate.name == name)


def figure(report: RunReport, key: str) -> Figure:
    return next(candidate for candidate in report.figures if candidate.key == key)


def test_curves_are_the_lines_of_metrics(tmp_path: Path) -> None:
    run_dir = whole_run(tmp_path)
    report, steps = report_of(run_dir), read_metrics(run_dir)
    assert report.grids["steps"].axes["version"] == [step.version for step in steps]
    assert report.grids["steps"].axes["seconds"] == pytest.approx([step.t_s for step in steps])
    assert curve(report, "reward", "reward") == [step.reward_mean for step in steps]
    assert curve(report, "staleness", "max") == [step.staleness_max for step in steps]
    assert curve(report, "permits", "open") == [step.open_groups for step in steps]
    assert curve(report, "ready", "train") == [step.stages["train"].ready_rows for step in steps]
    assert report.notes == []


def test_age_at_first_token_runs_from_the_first_generation_to_the_commit(tmp_path: Path) -> None:
    run_dir = whole_run(tmp_path)
    began: dict[int, float] = {}
    ages: list[float] = []
    expected = []
    for event in read_events(run_dir / EVENTS):
        if event.dst == "generating":
            began.setdefault(event.gid, event.t_s)
        if event.dst == "trained":
            ages.append(event.t_s - began[event.gid])
        if event.kind == "commit":
            expected.append(max(ages))
            ages = []
    assert curve(report_of(run_dir), "age_s", "max") == pytest.approx(expected)
    assert min(expected) > 0


def test_the_ledger_of_the_page_is_the_run_s(tmp_path: Path) -> None:
    run_dir = whole_run(tmp_path, seed=3)
    summary = msgspec.json.decode((run_dir / SUMMARY).read_bytes(), type=Summary)
    report = report_of(run_dir)
    assert {ending.state: ending.groups for ending in report.endings} == summary.ledger
    assert any(ending.state.startswith("dropped:") for ending in report.endings)
    trained = next(ending for ending in report.endings if ending.state == "trained")
    assert summary.trained is not None
    assert trained.tokens_mean == pytest.approx(summary.trained.tokens_mean)
    assert trained.age_mean == pytest.approx(summary.trained.age_mean)
    assert {curve.name for curve in chart(report, "lengths").curves} == {"trained", "dropped"}


def test_the_share_of_time_both_were_busy_is_the_summary_s_rule(tmp_path: Path) -> None:
    run_dir = record_run(tmp_path, 3)
    busy = {"rollout": {"busy": 0.9, "wait": 0.1, "paused": 0.0}, "trainer": {"busy": 0.7, "wait": 0.3, "paused": 0.0}}
    steps = [msgspec.structs.replace(step, shares=busy) for step in read_metrics(run_dir)]
    (run_dir / METRICS).write_bytes(b"".join(msgspec.json.encode(step) + b"\n" for step in steps))
    expected = overlap(steps)
    assert expected is not None
    assert figure(report_of(run_dir), "overlap").value == pytest.approx(100 * expected, abs=0.01)


def test_throughput_a_device_is_the_throughput_over_what_the_run_counted_as_devices(tmp_path: Path) -> None:
    run_dir = record_run(tmp_path, 4, info={"tokens": 900.0})
    rates = (10.0, 2000.0, 30.0, 40.0)  # of single steps, which say nothing of the whole
    steps = [
        msgspec.structs.replace(step, tokens_per_s=rate, tokens_per_s_device=rate / 4)
        for step, rate in zip(read_metrics(run_dir), rates, strict=True)
    ]
    (run_dir / METRICS).write_bytes(b"".join(msgspec.json.encode(step) + b"\n" for step in steps))
    report = report_of(run_dir)
    whole, a_device = figure(report, "rate").value, figure(report, "rate_device").value
    assert whole is not None
    assert a_device == pytest.approx(whole / 4)


def test_the_verdict_and_the_figures_count_time_alike(tmp_path: Path) -> None:
    run_dir = whole_run(tmp_path)
    summary = msgspec.json.decode((run_dir / SUMMARY).read_bytes(), type=Summary)
    longer = msgspec.structs.replace(summary, exit_reason="completed", seconds=12.3, seconds_total=45.6)
    (run_dir / SUMMARY).write_bytes(msgspec.json.encode(longer))
    assert report_of(run_dir).verdict.sentence.endswith("in 12.3 s (with preparation and end 45.6 s).")


def test_weights_are_followed_from_copy_to_load(tmp_path: Path) -> None:
    run_dir = whole_run(tmp_path)
    report = report_of(run_dir)
    names = {curve.name for curve in chart(report, "sync").curves}
    assert {"copy out", "commit → published", "load"} <= names
    published = [event.version for event in read_events(run_dir / EVENTS) if event.kind == "published"]
    assert report.grids["versions"].axes["version"] == published
    assert curve(report, "sync", "copy out")[0] == pytest.approx(3.0), "milliseconds; the first commit carries the copy of version 0"
    assert curve(report, "sync", "copy out")[-1] is None, "nothing tells how the last version was copied"


def test_a_run_without_a_timeline_still_opens_and_says_so(tmp_path: Path) -> None:
    run_dir = whole_run(tmp_path)
    (run_dir / TIMELINE).unlink()
    report = report_of(run_dir)
    assert report.timeline is None
    assert report.notes == [f"{TIMELINE}: there is none"]
    assert chart(report, "responses").absent == "not recorded"
    assert curve(report, "reward", "reward")


def test_a_number_that_was_not_measured_is_never_zero(tmp_path: Path) -> None:
    run_dir = record_run(tmp_path, 3)  # without evaluation, staleness means, lengths
    steps = [msgspec.structs.replace(step, reward_mean=None if step.version == 2 else 0.5, tokens_per_s=None) for step in read_metrics(run_dir)]
    (run_dir / METRICS).write_bytes(b"".join(msgspec.json.encode(step) + b"\n" for step in steps))
    report = report_of(run_dir)
    assert curve(report, "reward", "reward") == [0.5, None, 0.5]
    assert chart(report, "throughput").curves == []
    assert figure(report, "staleness_mean").value is None
    assert figure(report, "staleness_mean").shown == "not measured"


def test_version_0_and_staleness_0_are_values(tmp_path: Path) -> None:
    run_dir = record_run(tmp_path, 2, info={"staleness_max": 0.0, "staleness_mean": 0.0})
    report = report_of(run_dir)
    assert figure(report, "staleness_mean").value == 0.0
    assert curve(report, "staleness", "mean") == [0.0, 0.0]
    assert report.grids["evaluations"].axes["version"] == [0, 1, 2]


def test_settings_are_marked_where_they_are_not_the_default(tmp_path: Path) -> None:
    settings = {setting.key: setting for setting in report_of(whole_run(tmp_path)).settings}
    assert (settings["staleness"].value, settings["staleness"].default) == ("1", "2")
    assert settings["flow.policy"].value == settings["flow.policy"].default == '"wait"'


@pytest.mark.parametrize(
    ("state", "word", "tone"),
    [("completed", "Completed", "good"), ("interrupted", "Interrupted", "plain"), ("trainer-0 raised: ValueError: no", "Failed", "bad")],
)
def test_the_verdict_is_the_exit_reason(tmp_path: Path, state: str, word: str, tone: str) -> None:
    run_dir = whole_run(tmp_path)
    summary = msgspec.json.decode((run_dir / SUMMARY).read_bytes(), type=Summary)
    ended = msgspec.structs.replace(summary, exit_reason=state, traceback="Traceback: no" if tone == "bad" else None)
    (run_dir / SUMMARY).write_bytes(msgspec.json.encode(ended))
    verdict = report_of(run_dir).verdict
    assert (verdict.word, verdict.tone) == (word, tone)
    assert ("no" in verdict.sentence and "no" in verdict.traceback) == (tone == "bad")


def test_a_run_in_progress_is_told_from_one_that_was_killed(tmp_path: Path) -> None:
    run_dir = whole_run(tmp_path)
    unfinish(run_dir)
    assert report_of(run_dir).verdict.word == "In progress"
    for name in (EVENTS, METRICS, TIMELINE):
        written_s = (run_dir / name).stat().st_mtime
        os.utime(run_dir / name, (written_s - 600, written_s - 600))
    verdict = report_of(run_dir).verdict
    assert (verdict.word, verdict.tone) == ("Ended without a summary", "bad")
    assert "10 min" in verdict.sentence


def test_a_worker_s_traceback_and_the_stall_report_are_found_without_a_summary(tmp_path: Path) -> None:
    run_dir = whole_run(tmp_path)
    unfinish(run_dir)
    failed = Event(t_s=1.0, kind="run", reason="scorer-0 raised: KeyError", member="scorer-0#0", data={"traceback": "most recent call last"})
    stopped = Event(t_s=1.1, kind="run", dst="stop", reason="scorer-0 raised: KeyError")
    stalled = Event(t_s=1.2, kind="stall", reason="stall: no progress for 60 s: trainer-0 hangs")
    with (run_dir / EVENTS).open("ab") as file:
        file.writelines(msgspec.json.encode(event) + b"\n" for event in (failed, stopped, stalled))
    verdict = report_of(run_dir).verdict
    assert verdict.word == "Failed"
    assert "scorer-0 raised: KeyError" in verdict.sentence
    assert "most recent call last" in verdict.traceback
    assert "trainer-0 hangs" in verdict.stall


def test_a_stall_report_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    run_dir = whole_run(tmp_path)
    (run_dir / STALL).write_bytes(b'{"idle_s": 60.')
    assert "stall.json: cannot be read" in report_of(run_dir).verdict.stall


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it holds none of"):
        report_of(tmp_path)
    with pytest.raises(ConfigError, match="there is no such directory"):
        report_of(tmp_path / "nowhere")


def test_a_difference_says_whether_it_is_better() -> None:
    faster, slower = (Figure("seconds", "Time", "", value, "s", "lower") for value in (50.0, 100.0))
    assert difference(slower, faster) == ("−50 s (−50.0%)", "good")
    assert difference(faster, slower) == ("+50 s (+100.0%)", "bad")
    assert difference(faster, faster) == ("±0", "")
    assert difference(faster, Figure("seconds", "Time", "not measured")) == ("", "")


def test_a_column_that_comes_late_was_not_measured_before() -> None:
    columns = Columns()
    columns.row({"a": 1.0})
    columns.row({"a": None, "b": 0.0})
    np.testing.assert_array_equal(columns["a"], [1.0, np.nan])
    np.testing.assert_array_equal(columns["b"], [np.nan, 0.0])
    np.testing.assert_array_equal(columns["never"], [np.nan, np.nan])


@pytest.mark.parametrize("how", ["mean", "max", "last"])
def test_a_long_series_is_thinned_without_losing_its_largest_value(how: str) -> None:
    values = np.full(50_000, np.nan)
    values[::3] = 1.0
    values[30_000] = 9.0
    found = thinned(values, how)
    assert len(found) <= POINTS_BOUND
    known = [value for value in found if value is not None]
    assert max(known) == (9.0 if how == "max" else pytest.approx(1.6, abs=0.1) if how == "mean" else 1.0)
    assert len(known) == len(found)


def test_responses_are_counted_from_the_timeline(tmp_path: Path) -> None:
    report = report_of(whole_run(tmp_path))
    lengths = [length for record in timeline(0) for length in record.lengths]
    assert report.grids["responses"].axes["tokens"][0] <= min(lengths)
    assert sum(filter(None, curve(report, "responses", "responses")[:-1])) == pytest.approx(100)


def test_a_run_of_an_older_program_opens(tmp_path: Path) -> None:
    """Without the fields that steps have today, and with a configuration that has other keys."""
    run_dir = whole_run(tmp_path)
    old = [msgspec.to_builtins(step) for step in read_metrics(run_dir)]
    for step in old:
        del step["stages"], step["costs"]
    (run_dir / METRICS).write_bytes(b"".join(msgspec.json.encode(step) + b"\n" for step in old))
    (run_dir / "config.json").write_bytes(b'{"staleness": null, "forgotten": {"key": [1, 2]}}')
    report = report_of(run_dir)
    assert msgspec.convert(old[0], StepRecord).stages == {}
    assert chart(report, "ready").absent == "not recorded"
    assert [(setting.key, setting.default) for setting in report.settings] == [("staleness", "2"), ("forgotten.key", None)]
    assert ("staleness", "unbounded") in report.facts
