"""What a view knows of a run: read off files that grow, are cut off, or are of another release."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncflow.observe.live import tail as tail_module
from asyncflow.observe.live.follow import RunState, seconds_of
from asyncflow.observe.live.news import evaluation_of
from asyncflow.observe.live.tail import LineTail
from asyncflow.observe.records import EVENTS, METRICS, StepRecord
from tests.observe.live.run_files import append, died, evaluated, joined, spent, step
from transfer_queue.messages import Event

LINES = st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line and b"\r" not in line))


@settings(deadline=None, max_examples=50)  # no deadline an example: the machine may be loaded
@given(lines=LINES, cuts=st.lists(st.integers(1, 30)))
def test_every_line_comes_once_and_whole_however_the_file_grows(
    lines: list[bytes], cuts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("tail") / "file"
    tail, data, seen = LineTail(path, piece_bytes=8), b"".join(line + b"\n" for line in lines), []
    assert tail.lines() == []
    with path.open("ab", buffering=0) as file:
        for cut in [*cuts, len(data)]:
            file.write(data[:cut])
            data = data[cut:]
            while found := tail.lines():
                seen += found
    assert [line for line in seen if line] == [line for line in lines if line]


def test_a_line_longer_than_a_piece_comes_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100 + b"\nshort\nunfinished")
    tail = LineTail(tmp_path / "file", piece_bytes=16)
    assert [*tail.lines(), *tail.lines()] == [b"x" * 100, b"short"]
    assert tail.lines() == []


def test_a_file_without_line_ends_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_module, "LINE_BOUND", 64)
    (tmp_path / EVENTS).write_bytes(bytes(200))
    tail = LineTail(tmp_path / EVENTS, piece_bytes=16)
    assert [len(line) for line in tail.lines()] == [64]
    state = RunState(tmp_path)
    while state.advance():
        pass
    assert state.unreadable > 0  # and the view says so


def test_what_is_no_file_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    (tmp_path / EVENTS).mkdir()
    append(tmp_path, step(1))
    state = RunState(tmp_path)
    assert state.advance()
    assert state.step is not None
    assert state.problem == f"{EVENTS} cannot be read: Is a directory"


def test_lines_that_cannot_be_read_do_not_look_like_the_end(tmp_path: Path) -> None:
    (tmp_path / EVENTS).write_bytes(b"[" * 100_000 + b"\nno event\n")
    state = RunState(tmp_path)
    assert state.advance()
    assert not state.advance()
    assert state.unreadable > 0


def test_a_report_of_another_program_is_passed_over(tmp_path: Path) -> None:
    for data in ({"accuracy": 0.5}, {"accuracy": "x", "version": 1}, {"accuracy": 0.5, "version": "inf"}, {"accuracy": 0.5, "version": "1.5"}):
        assert evaluation_of(Event(t_s=1.0, kind="report", data=data)) is None  # type: ignore[arg-type]
    append(tmp_path, Event(t_s=1.0, kind="member", member="odd#name", reason="joined"))
    state = RunState(tmp_path)
    assert state.advance()
    assert state.members["odd"].restarts == 0


def test_one_look_at_a_long_run_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345\n" * 1000)
    tail = LineTail(tmp_path / "file", piece_bytes=600)
    assert len(tail.lines()) == 100


def test_the_state_holds_the_newest_step_the_course_and_the_members(tmp_path: Path) -> None:
    state = RunState(tmp_path)
    assert not state.advance()
    assert (state.step, state.elapsed_s(), state.left_s(10)) == (None, None, None)
    append(tmp_path, joined("rollout"), joined("trainer"), step(1, reward_mean=None), step(2), evaluated(0, 0.0, 1.0))
    assert state.advance()
    assert not state.advance()
    assert state.step is not None
    assert state.step.version == 2
    assert list(state.rewards) == [0.01]  # not measured is not 0
    assert [(one.version, one.accuracy) for one in state.evaluations] == [(0, 0.0)]  # and 0 is a measure
    append(tmp_path, died("rollout", "killed by SIGKILL"))
    state.advance()
    assert state.members["rollout-0"].left == "killed by SIGKILL"
    append(tmp_path, joined("rollout", 1))
    state.advance()
    assert (state.members["rollout-0"].left, state.members["rollout-0"].restarts) == (None, 1)


def test_a_group_event_or_a_damaged_line_changes_nothing_and_the_damaged_one_is_counted(tmp_path: Path) -> None:
    append(tmp_path, Event(t_s=3.0, kind="group", topic="policy", gid=1, dst="admitted"))
    (tmp_path / METRICS).write_bytes(b'{"version": "of another release"}\n')
    state = RunState(tmp_path)
    state.advance()
    assert (state.step, state.members, state.unreadable) == (None, {}, 1)
    assert state.until_s == 3.0


def test_the_time_left_follows_the_median_of_the_last_steps(tmp_path: Path) -> None:
    """One pause of 100 s among steps of 2 s does not count, nor do the slow steps of long ago."""
    ends, t_s = [], 0.0
    for number in range(60):
        t_s += 50.0 if number < 30 else 100.0 if number == 50 else 2.0
        ends.append(t_s)
    append(tmp_path, *(step(number + 1, t_s) for number, t_s in enumerate(ends)), joined("trainer", 0, t_s))
    state = RunState(tmp_path)
    state.advance()
    assert state.step_s() == 2.0
    left_s = state.left_s(100)
    assert left_s is not None
    assert 40 * 2.0 - 2.0 <= left_s <= 40 * 2.0  # up to a step of them has passed


def test_a_workers_time_is_that_of_its_main_thread_and_what_no_span_covers_was_waited() -> None:
    assert seconds_of(spent("rollout", 7.0, 1.0)) == {"busy": 7.0, "paused": 1.0, "wait": 2.0}


def test_a_workers_shares_are_those_of_its_last_ten_seconds(tmp_path: Path) -> None:
    times = [spent("rollout", 0.0, 0.0, at, at + 5.0) for at in (0.0, 5.0)] + [spent("rollout", 4.0, 1.0, at, at + 5.0) for at in (10.0, 15.0)]
    append(tmp_path, joined("rollout"), *times)
    state = RunState(tmp_path)
    state.advance()
    assert state.lately("rollout-0", "rollout") == {"busy": 0.8, "wait": 0.0, "paused": 0.2}
    assert state.in_all("rollout-0", "rollout") == {"busy": 0.4, "wait": 0.5, "paused": 0.1}


def test_a_worker_whose_time_was_not_recorded_has_the_shares_of_its_role(tmp_path: Path) -> None:
    still, busy = {"busy": 0.0, "wait": 1.0, "paused": 0.0}, {"busy": 1.0, "wait": 0.0, "paused": 0.0}
    append(tmp_path, joined("rollout"), step(1, 3.0, shares={"rollout": busy}), step(2, 4.0, shares={"rollout": still}))
    state = RunState(tmp_path)
    state.advance()
    assert state.lately("rollout-0", "rollout") == still
    assert state.in_all("rollout-0", "rollout") == {"busy": 0.75, "wait": 0.25, "paused": 0.0}
    assert state.lately("scorer-0", "scorer") is None


def test_files_that_are_cut_off_anywhere_are_read_up_to_there(tmp_path: Path) -> None:
    whole, cut_dir = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut_dir.mkdir()
    append(whole, joined("rollout"), evaluated(0, 0.5, 1.0), *(step(version) for version in range(1, 4)))
    for name in (METRICS, EVENTS):
        data = (whole / name).read_bytes()
        for cut in range(0, len(data), 37):
            (cut_dir / name).write_bytes(data[:cut])
            state = RunState(cut_dir)
            state.advance()
            assert state.unreadable == 0
            assert isinstance(state.step, StepRecord | None)
