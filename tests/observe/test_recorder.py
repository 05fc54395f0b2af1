"""What a run says about itself: one line of metrics a commit, one event a change, a summary that is read off the log."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import msgspec
import pytest

from asyncflow.observe.log import LineLog, RecordLost
from asyncflow.observe.records import EVENTS, SUMMARY, TIMELINE, Summary, TimelineRecord
from asyncflow.observe.replay import read_events
from asyncflow.observe.shares import Shares
from asyncflow.observe.summary import read_metrics, summarise
from tests.observe.small_run import TOKENS, record_run


def test_every_commit_has_a_line_with_what_a_person_asks_for(tmp_path: Path) -> None:
    steps = read_metrics(record_run(tmp_path, steps=4, batch=3))
    assert [step.version for step in steps] == [1, 2, 3, 4]
    assert [step.ledger["trained"] for step in steps] == [3, 6, 9, 12]
    assert [step.staleness_max for step in steps] == [0.0, 1.0, 1.0, 1.0]
    last = steps[-1]
    assert last.reward_mean == 0.5
    assert last.shares["rollout"] == {"busy": 0.25, "wait": 0.75, "paused": 0.0}
    assert last.tokens_per_s == pytest.approx(TOKENS / (last.t_s - steps[-2].t_s))
    assert last.tokens_per_s_device == pytest.approx(last.tokens_per_s / 2)
    assert last.permits == 6
    assert last.queue_bytes == 0


def test_every_commit_has_the_queue_in_front_of_each_stage_and_what_calls_have_cost(tmp_path: Path) -> None:
    run_dir = record_run(tmp_path, steps=4, batch=3)
    steps = read_metrics(run_dir)
    assert [step.stages["train"].done_rows for step in steps] == [3, 6, 9, 12]
    assert {name for step in steps for name in step.stages} == {"train"}
    assert [step.costs["rollout.decode"].calls for step in steps] == [1.0, 2.0, 3.0, 4.0]
    records = [msgspec.json.decode(line, type=TimelineRecord) for line in (run_dir / TIMELINE).read_bytes().splitlines()]
    assert [(record.member, record.role) for record in records] == [("r#0", "rollout")] * 4
    assert all(before.until_s == after.from_s for before, after in itertools.pairwise(records))


def test_what_was_not_measured_is_null_and_never_zero(tmp_path: Path) -> None:
    steps = read_metrics(record_run(tmp_path))
    assert steps[0].staleness_mean is None


def test_the_summary_is_read_off_the_event_log(tmp_path: Path) -> None:
    run_dir = record_run(tmp_path, steps=4, batch=3, seed=1)
    summary = msgspec.json.decode((run_dir / SUMMARY).read_bytes(), type=Summary)
    assert summary.exit_reason == "completed"
    assert (summary.accuracy_before, summary.accuracy_after) == (0.0, 0.4)
    assert (summary.versions, summary.trained_groups, summary.trained_tokens) == (4, 12, 40)
    assert summary.staleness_max == 1.0
    assert summary.weights_digest == "digest4"
    assert summary.mixed_version_share == pytest.approx(1 / 3)
    assert summary.ledger["trained"] == 12
    assert summary.ledger["dropped:too_long"] > 0


def test_a_run_whose_controller_was_killed_has_a_summary_too(tmp_path: Path) -> None:
    run_dir = record_run(tmp_path)
    data = (run_dir / EVENTS).read_bytes()
    (run_dir / EVENTS).write_bytes(data[: len(data) // 2])
    summary = summarise(run_dir, "controller died: killed by SIGKILL", 3.0, {})
    assert 0 < summary.versions < 4
    assert summary.accuracy_after in (None, summary.versions / 10)


def test_a_run_that_never_started_has_nothing_measured(tmp_path: Path) -> None:
    summary = summarise(tmp_path, "prepare failed", 1.0, {})
    assert (summary.versions, summary.accuracy_before, summary.staleness_max, summary.weights_digest) == (0, None, None, None)


def test_appended_lines_are_on_disk_within_a_second(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with LineLog(path) as log:
        log.append({"a": 1})
        deadline = time.monotonic() + 5
        while not path.read_bytes():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        log.append({"a": 2})
    assert path.read_bytes() == b'{"a":1}\n{"a":2}\n'


def test_an_appended_event_costs_the_controller_microseconds(tmp_path: Path) -> None:
    with LineLog(tmp_path / "log.jsonl") as log:
        start_s = time.perf_counter()
        for index in range(20_000):
            log.append({"t_s": 1.5, "kind": "group", "gid": index})
        seconds = time.perf_counter() - start_s
    assert seconds / 20_000 < 100e-6
    assert len((tmp_path / "log.jsonl").read_bytes().splitlines()) == 20_000


def test_shares_are_of_the_time_since_the_last_line(tmp_path: Path) -> None:
    shares = Shares()
    roles = {"a#0": "rollout", "b#0": "rollout"}
    shares.update(roles, {"a#0": {"busy": 10.0, "wait": 0.0}, "b#0": {"busy": 10.0, "wait": 0.0}})
    now = shares.update(roles, {"a#0": {"busy": 11.0, "wait": 1.0}, "b#0": {"busy": 10.0, "wait": 2.0}})
    assert now == {"rollout": {"busy": 0.25, "wait": 0.75, "paused": 0.0}}
    assert shares.update(roles, {"a#0": {"busy": 11.0, "wait": 1.0}}) == now  # no news: as it was


def test_a_number_that_is_not_finite_stays_readable_and_is_never_null(tmp_path: Path) -> None:
    """JSON has no NaN: a skipped step's gradient must not make the record unreadable."""
    run_dir = record_run(tmp_path, steps=2, info={"grad_norm": float("nan"), "loss": float("inf")})
    commits = [event for event in read_events(run_dir / EVENTS) if event.kind == "commit"]
    assert [(event.data["grad_norm"], event.data["loss"]) for event in commits] == [("nan", "inf")] * 2
    assert all("grad_norm" not in step.info and step.info["tokens"] == TOKENS for step in read_metrics(run_dir))


def test_a_record_that_cannot_be_written_is_an_error_and_does_not_pile_up() -> None:
    log = LineLog(Path("/dev/full"))
    log.append({"line": 1})
    log._thread.join(5)
    with pytest.raises(RecordLost, match="nothing is recorded any more"):
        log.append({"line": 2})
