"""Runs whose controller keeps a journal: whatever is cut off it, and whenever it is killed, what was acknowledged comes back."""

from __future__ import annotations

import os
import random
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from controller_bench import Log, spec
from controller_world import Settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journal_kept import KeptWorld, Silent, kept_state, state
from journal_lossy import LossyWorld

from transfer_queue import messages as m
from transfer_queue.controller.core import Core, CoreConfig
from transfer_queue.controller.moves import Moves
from transfer_queue.journal.errors import JournalError
from transfer_queue.journal.logs import numbers, path_of
from transfer_queue.journal.pages import MAGIC, pages
from transfer_queue.journal.recovery import open_journal, restore
from transfer_queue.journal.settings import JournalSettings
from transfer_queue.wire import encode

SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
ANY_RUN = {
    "seed": st.integers(0, 2**32),
    "staleness": st.sampled_from([0, 1, 2, None]),
    "policy": st.sampled_from(["wait", "drop"]),
    "requeue": st.booleans(),
    "hand_backs": st.sampled_from([0.0, 0.1]),
    "drops": st.sampled_from([0.0, 0.1]),
    "deaths": st.sampled_from([0.01, 0.05]),
}


def finish(world: KeptWorld) -> None:
    """To the end, with what every simulated run must have kept."""
    options = world.settings
    status = world.run()
    counts = status.topics[0].ledger
    assert status.reason == "completed", f"{options} did not finish: {status.reason}"
    assert counts["trained"] == options.total == len(world.trained_gids) == len(set(world.trained_gids)), "trained once, each"
    if options.staleness is not None:
        assert max(world.stalenesses) <= options.staleness
    assert world.core.live_blocks(0) == [], "every block is freed"


@given(kill=st.sampled_from([0.01, 0.05]), snapshot_bytes=st.sampled_from([1, 20_000, 1 << 30]), **ANY_RUN)
@settings(max_examples=5, deadline=None, suppress_health_check=SLOW)
def test_a_run_whose_controller_is_killed_again_and_again_ends_well(folder: Path, kill: float, snapshot_bytes: int, **options: object) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        world = KeptWorld(Settings(total=9, **options), Path(own), kill, snapshot_bytes)  # type: ignore[arg-type]
        finish(world)
        assert world.kept.kills
        world.kept.leave()


class KeptLossyWorld(KeptWorld, LossyWorld):
    """Everything at once: controller, shards and workers die."""


@given(snapshot_bytes=st.sampled_from([1, 20_000]), **ANY_RUN)
@settings(max_examples=3, deadline=None, suppress_health_check=SLOW)
def test_a_run_whose_controller_and_shards_are_killed_ends_well(folder: Path, snapshot_bytes: int, **options: object) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        world = KeptLossyWorld(Settings(total=9, **options), Path(own), 0.02, snapshot_bytes)  # type: ignore[arg-type]
        finish(world)
        world.kept.leave()


@given(snapshot_bytes=st.sampled_from([5_000, 1 << 30]), every=st.integers(20, 90), **ANY_RUN)
@settings(max_examples=6, deadline=None, suppress_health_check=SLOW)
def test_what_would_come_back_is_bit_for_bit_what_there_is(folder: Path, snapshot_bytes: int, every: int, **options: object) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        world = KeptLossyWorld(Settings(total=17, **options), Path(own), snapshot_bytes=snapshot_bytes)  # type: ignore[arg-type]
        for turn in range(400):
            world.step()
            if turn % every == 0:
                world.kept.settle()
                assert kept_state(Path(own), world.config) == state(world.kept.core), f"after {turn} steps"
        world.kept.leave()


def test_a_log_that_is_cut_anywhere_comes_back_as_it_was_at_the_last_whole_page(folder: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    world = KeptWorld(Settings(seed=seed, deaths=0.03), folder / "run")
    log = path_of(folder / "run", "log", 0)
    states = world.kept.states = {log.stat().st_size: state(world.kept.core)}
    for _ in range(150):
        world.step()
    world.kept.leave()
    content, rng = log.read_bytes(), random.Random(seed)
    (folder / "cut").mkdir()
    for end in [*rng.sample(range(min(states), len(content)), 25), *rng.sample(sorted(states), 5)]:
        path_of(folder / "cut", "log", 0).write_bytes(content[:end])
        kept = max(size for size in states if size <= end)
        past = restore(folder / "cut", world.config, Silent())
        assert past is not None
        assert past.end == kept
        assert state(past.core) == states[kept]
        ledger = past.core.topics["policy"].ledger
        assert sum(ledger.counts.values()) == ledger.lives
        assert {group.state for group in past.core.topics["policy"].groups.values()} <= {"admitted", "generating", "complete", "leased"}


def test_a_log_with_a_changed_byte_is_not_believed_beyond_it(folder: Path) -> None:
    world = KeptWorld(Settings(seed=1), folder / "run")
    for _ in range(40):
        world.step()
    world.kept.leave()
    log = path_of(folder / "run", "log", 0)
    content, rng = bytearray(log.read_bytes()), random.Random(1)
    whole = restore(folder / "run", world.config, Silent())
    assert whole is not None
    for at in rng.sample(range(len(content) // 2), 20):
        changed = bytes([*content[:at], content[at] ^ 1 << rng.randrange(8), *content[at + 1 :]])
        log.write_bytes(changed)
        try:
            past = restore(folder / "run", world.config, Silent())
        except JournalError:
            continue
        assert past is None or past.end <= at, "a page with another sum was believed"


@pytest.mark.parametrize("page", [0, 3])
def test_a_log_whose_page_has_a_damaged_head_is_refused_and_not_cut_or_begun_anew(folder: Path, page: int) -> None:
    world = KeptWorld(Settings(total=6, seed=3), folder)
    for _ in range(30):
        world.step()
    world.kept.leave()
    config, log = world.config, path_of(folder, "log", 0)
    whole = log.read_bytes()
    begins = [len(MAGIC), *(found.end for found in pages(memoryview(whole)))]
    ats = (begins[page] + 6, begins[page] + 9, *([0] if page == 0 else []))  # the length, far beyond the file; the sum; what all files begin with
    for at in ats:
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        log.write_bytes(damaged)
        with pytest.raises(JournalError, match="damaged"):
            open_journal(JournalSettings(folder=str(folder)), config, Silent())
        assert log.read_bytes() == damaged, "nothing was cut off it"


def test_snapshots_replace_what_came_before_and_a_broken_one_is_not_used(folder: Path) -> None:
    world = KeptWorld(Settings(seed=2), folder, snapshot_bytes=1)
    while world.kept.opened.journal._head.number < 3:
        world.step()
    world.kept.leave()
    assert numbers(folder, "snapshot") == [3]
    assert numbers(folder, "log") == [3]
    now = kept_state(folder, world.config)
    path = path_of(folder, "snapshot", 3)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - 1])
    with pytest.raises(JournalError, match="do not follow on snapshot 0"):
        restore(folder, world.config, Silent())
    path.write_bytes(content)
    assert kept_state(folder, world.config) == now


def config(**more: object) -> CoreConfig:
    return CoreConfig(topics=[spec()], **more)  # type: ignore[arg-type]


def test_a_folder_is_one_controllers_and_one_configurations(folder: Path) -> None:
    journal = JournalSettings(folder=str(folder))
    opened = open_journal(journal, config(), Log())
    with pytest.raises(JournalError, match="of a controller that runs"):
        open_journal(journal, config(), Log())
    opened.journal.close()
    os.close(opened.holder)
    with pytest.raises(JournalError, match="another configuration"):
        open_journal(journal, config(lease_s=3.0), Log())


def test_a_journal_of_other_sources_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = JournalSettings(folder=str(folder))
    open_journal(journal, config(), Log()).journal.close()
    monkeypatch.setattr("transfer_queue.journal.logs.sources", lambda: "others")
    with pytest.raises(JournalError, match="another release"):
        restore(folder, config(), Silent())


def test_a_machine_that_was_started_anew_forgets_no_number(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = KeptWorld(Settings(seed=4, deaths=0.0), folder)
    for _ in range(150):
        world.step()
    serials, members = world.kept.core.serials, list(world.kept.core.members)
    assert members
    world.kept.leave()
    monkeypatch.setattr("transfer_queue.journal.recovery.boot", lambda: "another")
    opened = open_journal(JournalSettings(folder=str(folder)), world.config, Silent())
    assert opened.core.members == [], "the last second may be forgotten, so everybody joins anew"
    assert opened.core.serials >= serials + (1 << 32)
    opened.core.handle(b"x", m.Register(id=1, name=members[0].name, role="rollout", pid=1, host="h"))
    reply = opened.core.outbox[-1][1]
    assert isinstance(reply, m.OkRegistered)
    assert reply.incarnation >= members[0].incarnation + (1 << 32)
    topic = opened.core.topics["policy"]
    assert all(group.holder is None for group in topic.groups.values())
    assert sum(topic.ledger.counts.values()) == topic.ledger.lives


def test_a_clock_that_shows_less_than_before_goes_on_where_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that was started again: the machine is the same, its monotonic clock is not."""
    opened = open_journal(JournalSettings(str(folder)), config(), Silent())
    opened.journal.tick()
    opened.journal.close()
    os.close(opened.holder)
    last, passed_s = opened.clock.now, [-1e6]
    clock = SimpleNamespace(monotonic=lambda: last + passed_s[0], thread_time=time.thread_time)
    for module in ("journal.recovery", "controller.server"):
        monkeypatch.setattr(f"transfer_queue.{module}.time", clock)
    again = open_journal(JournalSettings(str(folder)), config(), Silent())
    assert again.clock.now >= last
    before = again.clock.now
    passed_s[0] += 7.0
    assert again.clock.read() == pytest.approx(before + 7.0), "deadlines fall due as they would have"
    passed_s[0] -= 20.0
    assert again.clock.read() == before, "it never goes back"


def test_with_every_reply_on_the_disk_a_machine_that_was_started_anew_has_everybody_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = JournalSettings(folder=str(folder), sync="always")
    opened = open_journal(journal, config(), Silent())
    request = m.Register(id=1, name="a", role="rollout", pid=1, host="h")
    opened.journal.request(b"x", encode(request), request)
    opened.core.handle(b"x", request)
    opened.journal.keep(opened.core.outbox)
    opened.core.outbox.clear()
    opened.journal.close()
    os.close(opened.holder)
    monkeypatch.setattr("transfer_queue.journal.recovery.boot", lambda: "another")
    again = open_journal(journal, config(), Silent())
    assert [member.owner for member in again.core.members] == ["a#0"]
    assert again.clock.now >= opened.clock.now


class Calls:
    """An observer that is safe with the first `safe` calls."""

    def __init__(self, safe: int) -> None:
        self.calls: list[list[m.Event]] = []
        self._safe = safe

    def kept(self) -> int:
        return self._safe

    def rewind(self, calls: int) -> None:
        raise AssertionError(f"nothing was lost, only {calls} calls of {self._safe} are said to have happened")

    def on_event(self, event: m.Event) -> None:
        self.calls.append([event])

    def on_moves(self, moves: Moves, t_s: float) -> None:
        self.calls.append(list(moves.events(t_s)))


class Both(Log):
    """What the world checks its books with, and the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = Calls(0)

    def on_event(self, event: m.Event) -> None:
        self.seen.on_event(event)
        super().on_event(event)

    def on_moves(self, moves: Moves, t_s: float) -> None:
        self.seen.on_moves(moves, t_s)
        for event in moves.events(t_s):
            super().on_event(event)


class WatchedWorld(KeptWorld):
    def start(self, config: CoreConfig) -> Core:
        self.log: Both = Both()
        return super().start(config)


def test_an_observer_is_told_what_it_has_not_kept_and_nothing_twice(folder: Path) -> None:
    world = WatchedWorld(Settings(seed=3, total=30), folder)
    for _ in range(200):
        world.step()
    world.kept.leave()
    seen = world.log.seen.calls
    for safe in (0, len(seen) // 2, len(seen)):
        calls = Calls(safe)
        assert restore(folder, world.config, calls) is not None
        assert calls.calls == seen[safe:]


class Rewound(Calls):
    """It keeps everything, and goes back where it has to."""

    def rewind(self, calls: int) -> None:
        del self.calls[calls:]


def test_an_observer_that_kept_what_a_power_cut_took_from_the_journal_goes_back(folder: Path) -> None:
    world = WatchedWorld(Settings(seed=3, total=30), folder)
    for _ in range(200):
        world.step()
    world.kept.leave()
    seen, log = world.log.seen.calls, path_of(folder, "log", 0)
    found = list(pages(memoryview(log.read_bytes())))
    for page in (found[-1], found[len(found) // 2]):
        os.truncate(log, page.end)
        calls = Rewound(len(seen))
        calls.calls = list(seen)
        past = restore(folder, world.config, calls)
        assert past is not None
        assert calls.calls == seen[: past.core.emitted]
    assert len(calls.calls) < len(seen)


def test_what_a_heartbeat_recorded_is_the_observers_and_is_not_kept(folder: Path) -> None:
    world = KeptWorld(Settings(seed=6), folder)
    member = world.kept.core.members[0]
    traces: list[bytes] = []
    world.kept.core.send_traces_to(lambda owner, role, trace, t_s: traces.append(trace))
    world.call(None, m.Watch(member=member.name, incarnation=member.incarnation, seen=1 << 40, wait_s=60.0, trace=b"what it did"))
    assert traces == [b"what it did"]
    assert b"what it did" not in path_of(folder, "log", 0).read_bytes()
    assert kept_state(folder, world.config) == state(world.kept.core)
    world.kept.leave()
