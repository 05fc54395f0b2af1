"""The files that a stall leaves: whole, readable by programs and people, and never the reason why a run does not end."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from asyncflow.observe.records import STALL
from asyncflow.observe.stall import STALL_TEXT, load_stall, now_doing, save_stall, stall_sink
from asyncflow.workers.phase import PhaseMarks
from transfer_queue.messages import AdmissionWait, Blame, GroupWait, LeaseWait, MemberWait, StageWait, StallReport, TopicWait

REPORT = StallReport(
    idle_s=61.0,
    stall_s=60.0,
    blame=Blame("reward", ["scorer-0#0"], 3, "columns of stage 'reward'", 61.0, "stage 'reward': scorer-0#0 holds lease 12"),
    topics=[
        TopicWait(
            topic="policy",
            version=0,
            published=0,
            committed_s=None,
            ledger={"complete": 1},
            oldest=GroupWait(3, 0, "complete", 61.0, "columns ['rewards'] of row 0 from reward", ["scorer-0#0"]),
            admission=AdmissionWait(0, 4, "window"),
            stages=[StageWait("reward", 0, [LeaseWait(12, "scorer-0#0", 61.0, 8, [3, 5], True)], {}, ["scorer-0#0"], {"scorer-1#2": 9.0}, None)],
        )
    ],
    members=[MemberWait("scorer-0#0", "scorer", 0.5, "busy", 60.5, "compute", {"policy": 0}, None, None, {"Take reward": 3.0})],
)


def test_a_report_is_saved_for_programs_and_people_and_read_back(tmp_path: Path) -> None:
    assert load_stall(tmp_path) is None
    save_stall(tmp_path, REPORT)
    assert load_stall(tmp_path) == REPORT
    text = (tmp_path / STALL_TEXT).read_text()
    for part in (
        "whose move: stage 'reward': scorer-0#0 holds lease 12",
        "version 0 (committed never), 0 published",
        "group 3, version 0, complete since 61.0 s, waits for columns ['rewards'] of row 0 from reward (owed by scorer-0#0)",
        "0 permits free, 4 prompts wait, bound by window",
        "scorer-0#0 lost 8 rows of groups [3, 5] for 61.0 s; scorer-1#2 ended 9.0 s ago",
        "busy for 60.5 s; now: compute; loaded policy 0; waits: Take reward for 3.0 s",
    ):
        assert part in text
    assert {path.name for path in tmp_path.iterdir()} == {STALL, STALL_TEXT}, "no draft is left"


def test_a_report_of_another_release_is_an_error_and_not_a_wrong_report(tmp_path: Path) -> None:
    (tmp_path / STALL).write_text('{"idle_s": 1}')
    with pytest.raises(msgspec.DecodeError):
        load_stall(tmp_path)


def test_a_disk_that_takes_nothing_does_not_hide_why_the_run_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stall_sink(tmp_path / "missing")(REPORT)
    told = capsys.readouterr().err
    assert "cannot be written" in told
    assert "whose move: stage 'reward': scorer-0#0 holds lease 12" in told


def test_what_a_worker_does_is_read_off_its_marks_and_unknown_for_others(tmp_path: Path) -> None:
    marks = PhaseMarks(tmp_path, "rollout-0")
    assert now_doing(tmp_path)("rollout-0") == ""
    marks.set("compute")
    marks.set("put", "writer")
    assert now_doing(tmp_path)("rollout-0") == "compute, writer put"
    assert now_doing(tmp_path)("on another host") == ""
