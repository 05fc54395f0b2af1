"""A controller that was killed and came back tells its past again: the record has every event once, in order, as if nothing had been."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncflow.config import RunConfig
from asyncflow.flow.core import core_config
from asyncflow.launch.controller import RECORDED, standing
from asyncflow.observe.again import Again, Mark
from asyncflow.observe.ledger_checker import check_run
from asyncflow.observe.log import LineLog
from asyncflow.observe.recorder import Memory, Recorder, Standing
from asyncflow.observe.records import EVENTS, JOURNAL, METRICS, TIMELINE, CostSums, TimelineRecord
from asyncflow.observe.replay import read_events
from asyncflow.observe.summary import read_metrics, summarise, write_summary
from asyncflow.observe.trace import Trace, TraceSpan, encode_trace
from tests.config.recipes import MINIMAL, load_text
from tests.observe.small_run import SHORT, TOKENS, SmallRun, drive
from transfer_queue.codec.declared import value_bytes
from transfer_queue.controller.core import Core
from transfer_queue.controller.moves import Moves
from transfer_queue.journal.observing import Later
from transfer_queue.journal.recovery import open_journal
from transfer_queue.journal.settings import JournalSettings
from transfer_queue.messages import Event, Request
from transfer_queue.wire import encode

LETTERS = st.lists(st.sampled_from(["a", "bb", "ccc"]), max_size=12)


@settings(deadline=None, max_examples=60)
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


class KeptRun(SmallRun):
    """The same run behind a journal. Its controller is killed before some requests, and starts again."""

    def __init__(self, config: RunConfig, run_dir: Path, random: Random) -> None:
        self.config, self.run_dir, self.random = core_config(config), run_dir, random
        self.sizes = {column.name: value_bytes(column) for topic in self.config.topics for column in topic.columns}
        self.told = self.requests = self.blocks = self.kills = self.snapshots = 0
        self.start()

    @property
    def now(self) -> float:  # type: ignore[override]
        return self.opened.clock.now - self.opened.core._runtime._start

    def start(self) -> None:
        folder = self.run_dir / JOURNAL
        folder.mkdir(exist_ok=True)
        self.recorder = Recorder(self.run_dir, 2, folder / RECORDED)

        def attach(core: Core) -> None:
            self.recorder.standing = lambda topic: standing(core, topic)
            core.send_traces_to(self.recorder.on_trace)

        self.opened = open_journal(JournalSettings(str(folder)), self.config, self.recorder, attach)
        self.core = self.opened.core

    def ask(self, request: Request) -> msgspec.Struct:
        if self.random.random() < 0.1:
            self.end()
            self.start()
            self.kills += 1
        elif self.random.random() < 0.1:
            self.opened.journal.snapshot()
            self.snapshots += 1
        self.opened.clock.now += 0.01
        self.requests += 1
        request = msgspec.structs.replace(request, id=self.requests)
        self.opened.journal.request(b"c", encode(request), request)
        self.core.handle(b"c", request)
        replies = [reply for _, reply in self.core.outbox if reply.id == self.requests]
        self.opened.journal.keep(self.core.outbox)
        self.core.outbox.clear()
        self.core.frees.clear()
        self.core.sweeps.clear()
        assert len(replies) == 1, request
        return replies[0]

    def end(self) -> None:
        """Everything that a killed process had written; what the recorder's thread had still to bring to the disk may be there or not."""
        self.opened.journal.close()
        os.close(self.opened.holder)
        self.recorder.close()
        for name, least in zip((EVENTS, METRICS), self.least(), strict=True):
            cut(self.run_dir / name, least, self.random)

    def least(self) -> tuple[int, int]:
        """What was on the disk at the last snapshot."""
        memory = self.run_dir / JOURNAL / RECORDED
        before = msgspec.json.decode(memory.read_bytes(), type=Memory) if memory.exists() else Memory()
        return before.events.nbytes, before.metrics.nbytes


@pytest.mark.parametrize("seed", range(4))
def test_the_ledger_of_a_run_whose_controller_is_killed_again_and_again_balances_line_by_line(tmp_path: Path, seed: int) -> None:
    random, run_dir = Random(seed), tmp_path / "run"
    config = load_text(tmp_path, MINIMAL, *SHORT, "run.steps=6", "batch_size=3", "staleness=1")
    run_dir.mkdir()
    config = msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, dir=str(run_dir)))
    (run_dir / "config.json").write_bytes(config.encode())
    run = KeptRun(config, run_dir, random)
    drive(run, config, random, {})
    run.opened.journal.close()
    os.close(run.opened.holder)
    run.recorder.close()
    write_summary(run_dir, summarise(run_dir, "completed", 9.0, {}))
    assert check_run(run_dir).commits == 6
    assert run.kills > 3
    assert run.snapshots > 1
    restarted = [event for event in read_events(run_dir / EVENTS) if event.reason == "restarted"]
    assert len(restarted) == run.kills
    assert [step.info["tokens"] for step in read_metrics(run_dir)] == [TOKENS] * 6


class Delayed(Later):
    """A journal that writes its pages late."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "standing":
            self.observer.standing = value  # type: ignore[attr-defined]
        else:
            super().__setattr__(name, value)

    def on_trace(self, member: str, role: str, trace: bytes, t_s: float) -> None:
        """No part of it."""


def test_what_a_commit_says_of_the_state_is_that_of_its_moment_though_it_is_told_later(tmp_path: Path) -> None:
    config = load_text(tmp_path, MINIMAL, *SHORT, "run.steps=6", "batch_size=3", "staleness=1")
    found = []
    for late in (False, True):
        folder = tmp_path / str(late)
        folder.mkdir()
        with Recorder(folder, devices=2) as recorder:
            later = Delayed(recorder)
            drive(SmallRun(config, later if late else recorder), config, Random(5), {})  # type: ignore[arg-type]
            later.tell()
        found.append([(step.events, step.ledger, step.permits, step.open_groups, step.stages) for step in read_metrics(folder)])
    assert found[0] == found[1]
