"""A controller that was killed and came back tells its past again: the record has every event once, in order, as if nothing had been."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncflow.config import RunConfig
from asyncflow.launch.controller import standing
from asyncflow.observe.again import Again, Mark
from asyncflow.observe.log import LineLog
from asyncflow.observe.recorder import Recorder, Standing
from asyncflow.observe.records import EVENTS, METRICS, TIMELINE, CostSums, TimelineRecord
from asyncflow.observe.summary import read_metrics
from asyncflow.observe.trace import Trace, TraceSpan, encode_trace
from tests.config.recipes import MINIMAL, load_text
from tests.observe.small_run import SHORT, SmallRun, drive
from transfer_queue.controller.moves import Moves
from transfer_queue.messages import Event

LETTERS = st.lists(st.sampled_from(["a", "bb", "ccc"]), max_size=12)


@given(before=LETTERS, there=LETTERS, told=LETTERS, torn=st.booleans())
def test_what_is_told_from_a_mark_on_is_what_the_file_holds_whatever_stood_there(
    tmp_path_factory: pytest.TempPathFactory, before: list[str], there: list[str], told: list[str], torn: bool
) -> None:
    path = tmp_path_factory.mktemp("again") / "log.jsonl"
    start = b"".join(msgspec.json.encode(line) + b"\n" for line in before)
    rest = b"".join(msgspec.json.encode(line) + b"\n" for line in there)
    path.write_bytes(start + (rest[:-1] if torn else rest))
    with LineLog(path, Again(path, Mark(len(start), len(before)))) as log:
        for line in told:
            log.append(line)
        assert log.mark.lines == len(before) + len(told)
    assert [msgspec.json.decode(line) for line in path.read_bytes().splitlines()] == before + told
    assert log.mark.nbytes == path.stat().st_size


def test_what_is_found_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'"a"\n"b"\n')
    with LineLog(path, Again(path, Mark())) as log:
        log.append("a")
        log.append("b")
        log.flush()
        assert path.read_bytes() == b'"a"\n"b"\n'
        log.append("c")
    assert path.read_bytes() == b'"a"\n"b"\n"c"\n'


Call = Callable[[Recorder], None]


class Spy:
    """In place of a recorder: keeps the calls that it gets, with what the controller's state was then."""

    def __init__(self) -> None:
        self.standing: Callable[[str], Standing] | None = None
        self.calls: list[Call] = []

    def on_event(self, event: Event) -> None:
        found = standing(self.run.core, event.topic) if event.kind == "commit" else None

        def call(recorder: Recorder) -> None:
            if found is not None:
                recorder.standing = lambda topic: found
            recorder.on_event(event)

        self.calls.append(call)

    def on_moves(self, moves: Moves, t_s: float) -> None:
        self.calls.append(lambda recorder: recorder.on_moves(moves, t_s))

    def on_trace(self, member: str, role: str, trace: bytes, t_s: float) -> None:
        """Not part of what comes again."""


def calls_of(folder: Path) -> list[Call]:
    spy = Spy()
    config: RunConfig = load_text(folder, MINIMAL, *SHORT, "run.steps=6", "batch_size=3", "staleness=1")
    spy.run = SmallRun(config, spy)  # type: ignore[attr-defined, arg-type]
    drive(spy.run, config, Random(3), {})  # type: ignore[attr-defined]
    return spy.calls


def cut(path: Path, least: int, random: Random) -> None:
    """What the flushing thread had not brought to the disk is not there; a line may be torn."""
    os.truncate(path, random.randint(least, path.stat().st_size))


@pytest.mark.parametrize("seed", range(8))
def test_a_record_that_was_cut_by_kills_and_told_again_is_the_record_of_a_run_without_any(tmp_path: Path, seed: int) -> None:
    calls, random = calls_of(tmp_path), Random(seed)
    whole, killed, memory = tmp_path / "whole", tmp_path / "killed", tmp_path / "recorded.json"
    whole.mkdir()
    killed.mkdir()
    with Recorder(whole, devices=2) as recorder:
        for call in calls:
            call(recorder)
    done = 0
    for life in range(4):
        with Recorder(killed, 2, memory) as recorder:
            assert recorder.kept() <= done, "nothing that was not told yet"
            at, end = recorder.kept(), len(calls) if life == 3 else random.randint(done, len(calls))
            for number, call in enumerate(calls[at:end], at):
                if random.random() < 0.01 and number >= done:
                    recorder.kept()  # as for a snapshot
                call(recorder)
        if life < 3:
            marks = Recorder(killed, 2, memory)
            least = marks._events.mark.nbytes, marks._metrics.mark.nbytes
            marks._events._again, marks._metrics._again = None, None
            marks.close()
            cut(killed / EVENTS, least[0], random)
            cut(killed / METRICS, least[1], random)
        done = end
    assert (killed / EVENTS).read_bytes() == (whole / EVENTS).read_bytes()
    assert read_metrics(killed) == read_metrics(whole)


def test_an_event_that_no_journal_holds_gives_way_to_what_then_happened(tmp_path: Path) -> None:
    calls, memory = calls_of(tmp_path), tmp_path / "recorded.json"
    run = tmp_path / "run"
    run.mkdir()
    with Recorder(run, 2, memory) as recorder:
        for call in calls[:20]:
            call(recorder)
        recorder.on_event(Event(t_s=9.0, kind="group", topic="policy", gid=0, src="generating", dst="complete"))
    with Recorder(run, 2, memory) as recorder:
        for call in calls[:20]:
            call(recorder)
        recorder.on_event(Event(t_s=9.0, kind="run", reason="restarted"))
    lines = (run / EVENTS).read_bytes().splitlines()
    assert b"restarted" in lines[-1]
    assert not any(b'"t_s":9.0' in line and b"group" in line for line in lines)


def trace(start: int, end: int, calls: float) -> bytes:
    return encode_trace(Trace(start, end, {"main": [TraceSpan("busy", "compute", start, end)]}, [5], {"train": CostSums(calls, 1.0, 1.0, 1.0, 1.0)}))


def test_timelines_and_costs_go_on_and_a_heartbeat_that_comes_twice_is_one_line(tmp_path: Path) -> None:
    memory = tmp_path / "recorded.json"
    with Recorder(tmp_path, 1, memory) as recorder:
        recorder.on_trace("a#0", "trainer", trace(0, 1_000_000, 3.0), 11.0)
        recorder.kept()
        recorder.on_trace("a#0", "trainer", trace(1_000_000, 2_000_000, 5.0), 12.0)
    with Recorder(tmp_path, 1, memory) as recorder:
        recorder.on_trace("a#0", "trainer", trace(1_000_000, 2_000_000, 5.0), 12.4)  # its reply was lost with the controller
        recorder.on_trace("a#0", "trainer", trace(2_000_000, 3_000_000, 6.0), 13.0)
        assert recorder._timeline.costs["train"].calls == 6.0
        assert not recorder._timeline.refused
    records = [msgspec.json.decode(line, type=TimelineRecord) for line in (tmp_path / TIMELINE).read_bytes().splitlines()]
    assert [(record.from_s, record.until_s) for record in records] == [(10.0, 11.0), (11.0, 12.0), (12.0, 13.0)]
