"""Samplers and a journal: what was chosen is kept and never asked for again, and ranks get their parts from the controller that comes back."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import journal_dealt
import msgspec
import pytest
from controller_bench import Log
from controller_world import Settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journal_dealt import DealtWorld, KeptDealtWorld
from journal_kept import Silent, kept_state, state
from test_saving import loaded, saved

from transfer_queue import messages as m
from transfer_queue.controller.rounds import waits_for_its_rank
from transfer_queue.journal import records
from transfer_queue.journal.errors import JournalError
from transfer_queue.journal.logs import path_of
from transfer_queue.journal.pages import MAGIC, page, pages
from transfer_queue.journal.records import Kind
from transfer_queue.journal.recovery import restore
from transfer_queue.samplers.choice import Choice

SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
ANY_RUN = {
    "seed": st.integers(0, 2**32),
    "staleness": st.sampled_from([0, 1, 2, None]),
    "policy": st.sampled_from(["wait", "drop"]),
    "drops": st.sampled_from([0.0, 0.1]),
    "deaths": st.sampled_from([0.01, 0.05]),
}
CALM_RUN = {**ANY_RUN, "deaths": st.just(0.01)}  # a run to its end takes long where everybody dies all the time


@given(snapshot_bytes=st.sampled_from([5_000, 1 << 30]), every=st.integers(20, 90), **ANY_RUN)
@settings(max_examples=6, deadline=None, suppress_health_check=SLOW)
def test_rounds_parts_and_choices_come_back_bit_for_bit(folder: Path, snapshot_bytes: int, every: int, **options: Any) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        world = KeptDealtWorld(Settings(total=17, **options), Path(own), snapshot_bytes=snapshot_bytes)
        for turn in range(400):
            world.step()
            if turn % every == 0:
                world.kept.settle()
                assert kept_state(Path(own), world.config) == state(world.kept.core), f"after {turn} steps"
        world.kept.leave()


@given(kill=st.sampled_from([0.0, 0.03]), losses=st.sampled_from([0.0, 0.02]), snapshot_bytes=st.sampled_from([1, 20_000]), **CALM_RUN)
@settings(max_examples=4, deadline=None, suppress_health_check=SLOW)
def test_any_run_of_ranks_ends_well_though_controller_shards_and_workers_die(
    folder: Path, kill: float, losses: float, snapshot_bytes: int, **options: Any
) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        world = KeptDealtWorld(Settings(total=9, **options), Path(own), kill, snapshot_bytes)
        world.losses = losses
        status = world.run()
        assert status.reason == "completed", f"{world.settings} did not finish: {status.reason}"
        assert status.topics[0].ledger["trained"] == 9 == len(world.trained_gids) == len(set(world.trained_gids)), "trained once, each"
        if world.settings.staleness is not None:
            assert max(world.stalenesses) <= world.settings.staleness
        assert not any(world.core.live_blocks(shard) for shard in range(world.shards)), "every block is freed"
        for number, rounds in world.core.topics["policy"].rounds.items():
            parts = rounds.freeze().parts
            assert {lease for lease, *_ in parts} <= {lease.id for lease in world.core.topics["policy"].leases if lease.consumer == number}
        world.kept.leave()


def worked(folder: Path, steps: int, **options: Any) -> KeptDealtWorld:
    """A run that was left in the middle."""
    world = KeptDealtWorld(Settings(seed=5, **options), folder)
    for _ in range(steps):
        world.step()
    world.kept.leave()
    return world


def chosen(log: bytes) -> list[Choice]:
    inputs = (each for found in list(pages(memoryview(log)))[1:] for each in records.inputs(found.body))
    return [msgspec.msgpack.decode(each.payload, type=Choice) for each in inputs if each.kind is Kind.CHOICE]


def test_who_comes_back_asks_no_sampler_for_what_it_chose_before(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = worked(folder, 400)
    assert len(chosen(path_of(folder, "log", 0).read_bytes())) > 5
    now, calls = state(world.kept.core), []
    assert {picker.fallbacks > 0 for picker in world.kept.core.topics["policy"].queues.pickers} == {True, False}
    monkeypatch.setattr(journal_dealt, "moody", lambda ready, limit: calls.append(limit))
    assert kept_state(folder, world.config) == now
    assert calls == []


def test_how_long_a_sampler_took_is_not_measured_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("transfer_queue.samplers.guard.SLOW_S", 0.0)  # every call is too slow,
        patch.setattr("transfer_queue.samplers.guard.REST", 10_000)  # and many takes find a sampler that rests
        world = worked(folder, 300)
    said = [choice.fault for choice in chosen(path_of(folder, "log", 0).read_bytes())]
    assert any("a call took" in fault for fault in said)
    assert any("is not asked for" in fault for fault in said)
    assert kept_state(folder, world.config) == state(world.kept.core)


def test_a_log_without_a_choice_that_was_made_is_not_believed(folder: Path) -> None:
    world = worked(folder, 300)
    path = path_of(folder, "log", 0)
    first, *others = pages(memoryview(path.read_bytes()))
    pieces: list[bytes] = [MAGIC, page(first.body), bytes(first.body)]
    for found in others:
        kept = [each for each in records.inputs(found.body) if each.kind is not Kind.CHOICE]
        body = b"".join(records.head(each.kind, each.now, each.connection, len(each.payload)) + bytes(each.payload) for each in kept)
        pieces += [page(body, found.counts), body]
    assert chosen(path.read_bytes())
    assert not chosen(b"".join(pieces))
    path.write_bytes(b"".join(pieces))
    with pytest.raises(JournalError, match=r"asked samplers \d times where it had asked 0 times"):
        restore(folder, world.config, Silent())


@given(seed=st.integers(0, 2**32), steps=st.integers(50, 400), policy=st.sampled_from(["wait", "drop"]))
@settings(max_examples=10, deadline=None)
def test_a_load_makes_what_was_dealt_ready_again_for_whichever_round_comes_next(seed: int, steps: int, policy: m.Policy) -> None:
    world = DealtWorld(Settings(seed=seed, policy=policy))
    for _ in range(steps):
        world.step()
    log = Log()
    core = loaded(world.config, log, world.clock, saved(world.core))
    was, topic = world.core.topics["policy"], core.topics["policy"]
    assert list(topic.leases) == []
    assert not any(terminal.batch for terminal in topic.terminals.values())
    held = [0] * len(topic.schema.consumers)
    for lease in was.leases:
        held[lease.consumer] += lease.count()
    for number, (before, more) in enumerate(zip(was.queues.rows, held, strict=True)):
        now = topic.queues.rows[number]
        whole = topic.schema.consumers[number].unit == "group"  # a group that only waited to be closed may be ready besides
        assert now >= before + more if whole else now == before + more, "every row that was ready, leased or dealt is ready, once"
    assert [picker.fallbacks for picker in topic.queues.pickers] == [picker.fallbacks for picker in was.queues.pickers]
    for number, rounds in topic.rounds.items():
        then = was.rounds[number].freeze()
        assert rounds.freeze() == then.ended()
        assert rounds.freeze().dealt == then.dealt, "no number of a round is given again"
    states = [group.state for group in topic.groups.values()]
    for state_of in ("admitted", "generating", "complete", "leased"):
        assert topic.ledger.counts[state_of] == states.count(state_of) == log.counts.get(state_of, 0)


def test_parts_really_wait_in_these_runs() -> None:
    waiting = set()
    for seed in range(6):
        world = DealtWorld(Settings(seed=seed, deaths=0.03))
        for _ in range(300):
            world.step()
            waiting |= {lease.consumer for lease in world.core.topics["policy"].leases if waits_for_its_rank(lease)}
    assert waiting == {1, 2, 3}
