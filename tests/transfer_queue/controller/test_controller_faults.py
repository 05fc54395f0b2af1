"""Bad requests, faults of our own, and runs that are stuck: the loop lives on, and what is stuck says so."""

from __future__ import annotations

import math

import msgspec
import pytest
from controller_bench import Log, spec
from controller_desk import Desk, plain, train_step

from transfer_queue import messages as m
from transfer_queue.controller.core import Core, CoreConfig
from transfer_queue.controller.parked import MAX_PARKED, clamp_wait


def test_unknown_topics_and_consumers_are_refused_and_nothing_else_happens() -> None:
    desk = Desk(plain())
    who = desk.join("x", "worker")
    assert "'t'" in desk.refuse(who.connection, m.Take(topic="u", consumer="trainer", limit=1, **who.fields), "unknown_topic")
    desk.refuse(who.connection, m.Pull(topic="u", loaded=0, limit=1, **who.fields), "unknown_topic")
    desk.refuse(who.connection, m.Take(topic="t", consumer="y", limit=1, **who.fields))
    for limit, at_least in ((0, 1), (1, 0), (-1, 1)):
        desk.refuse(who.connection, m.Take(topic="t", consumer="trainer", limit=limit, at_least=at_least, step=0, **who.fields))
    desk.refuse(who.connection, m.Pull(topic="t", loaded=0, limit=0, **who.fields))
    assert desk.core.status().state == "run"


def test_a_fault_in_a_handler_is_answered_and_logged_and_the_next_request_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(plain())
    who = desk.join("rollout-0")
    monkeypatch.setattr(desk.topic.window, "has_permit", lambda _: 1 / 0)
    desk.prompts(1)
    assert "ZeroDivisionError" in desk.refuse(who.connection, m.Pull(topic="t", loaded=0, limit=1, wait_s=0.0, **who.fields), "internal")
    assert "ZeroDivisionError" in str(desk.log.of("run")[-1].data["traceback"])
    monkeypatch.undo()
    assert len(desk.pull(who)) == 1


def test_a_parked_request_whose_retry_faults_gets_an_error_and_not_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(plain())
    who = desk.join("rollout-0")
    parked = desk.send(who.connection, m.Pull(topic="t", loaded=0, limit=1, **who.fields))
    monkeypatch.setattr(desk.topic.window, "has_permit", lambda _: 1 / 0)
    desk.prompts(1)
    reply = desk.replies[parked]
    assert isinstance(reply, m.ErrorReply)
    assert reply.code == "internal"


def test_a_fault_outside_of_requests_ends_the_run_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(plain())
    who = desk.join("rollout-0")
    monkeypatch.setattr(desk.core._run, "complete", lambda: 1 / 0)
    desk.watch(who)
    monkeypatch.undo()
    assert "ZeroDivisionError" in desk.core.status().reason


def test_ids_that_are_parked_already_are_refused() -> None:
    desk = Desk(plain())
    who = desk.join("rollout-0")
    pull = m.Pull(id=7000, topic="t", loaded=0, limit=1, **who.fields)
    desk.core.handle(b"c", pull)
    desk.core.handle(b"c", pull)
    assert [type(reply) for _, reply in desk.core.outbox] == [m.ErrorReply]
    desk.core.handle(b"d", pull)
    assert len(desk.core.outbox) == 1, "another connection counts its own ids"


def test_every_wait_has_a_deadline() -> None:
    assert clamp_wait(math.inf) == 600.0
    assert clamp_wait(math.nan) == clamp_wait(-1.0) == 0.0
    desk = Desk(plain(), heartbeat_s=1e6, stall_s=1e6)
    who = desk.join("rollout-0")
    parked = desk.send(who.connection, m.Pull(topic="t", loaded=0, limit=1, wait_s=math.inf, **who.fields))
    desk.wait(600.0)
    assert desk.replies[parked] == m.OkPulled(id=parked, groups=[])


def test_a_member_can_park_only_so_many_requests() -> None:
    desk = Desk(plain())
    who = desk.join("rollout-0")
    pull = m.Pull(topic="t", loaded=0, limit=1, **who.fields)
    for _ in range(MAX_PARKED):
        desk.send(who.connection, pull)
    assert str(MAX_PARKED) in desk.refuse(who.connection, pull)
    desk.join("rollout-0")
    assert desk.core._parked.all() == []


def test_what_nobody_received_is_handed_out_again() -> None:
    desk = Desk(spec(batch=1, staleness=1, rows=1))
    desk.prompts(2)
    rollout, worker, trainer = desk.join("rollout-0"), desk.join("worker", "worker"), desk.join("trainer", "trainer")
    desk.core.handle(b"gone", m.Pull(id=1, topic="policy", loaded=0, limit=1, **rollout.fields))
    desk.core.handle(b"gone", m.Watch(id=2, seen=10_000, **rollout.fields))
    connection, reply = desk.core.outbox.pop()
    desk.core.undelivered(connection, reply)
    lease = desk.pull(rollout)[0]
    assert lease.gid == 0
    desk.put(rollout, lease)
    desk.write(worker, desk.take(worker, "reward"), "reward", "reward")
    desk.write(worker, desk.take(worker, "forward", loaded=0), "forward", "old_logprobs", 0)
    desk.write(worker, desk.take(worker, "advantage"), "advantage", "advantage")
    desk.core.handle(b"gone", m.Take(id=3, topic="policy", consumer="trainer", limit=1, step=0, **trainer.fields))
    desk.core.undelivered(*desk.core.outbox.pop())
    assert desk.take(trainer, step=0).lease != -1, "a terminal lease has no time-out that would free it"


def test_a_run_without_progress_is_stopped_and_says_what_waits_for_what() -> None:
    desk = Desk(plain(batch=1, staleness=0), stall_s=60.0, lease_s=1000.0, heartbeat_s=1000.0)
    desk.prompts(2)
    rollout, trainer = desk.join("rollout-0"), desk.join("trainer", "trainer")
    lease = desk.pull(rollout)[0]
    desk.wait(59.0)
    desk.progress(rollout, lease, 1, 0)
    desk.wait(1.0)
    parked = desk.send(trainer.connection, m.Take(topic="t", consumer="trainer", limit=1, step=0, wait_s=600.0, **trainer.fields))
    desk.wait(58.0)
    desk.progress(rollout, lease, 1, 0)
    assert not desk.core.stopped, "59 s since the last token"
    desk.wait(1.0)
    report = desk.core.status().reason
    assert desk.core.stopped
    assert desk.log.of("stall")[0].reason == report
    assert "stage 'rollout': rollout-0#0 generates group 0 (rows [0]) without a new token (since 60.0 s)" in report
    assert "group 0 (version 0, generating) waits for it" in report
    assert desk.replies[parked] == m.OkTaken(id=parked, done=True)


def test_a_stall_report_names_missing_columns_and_missing_weights() -> None:
    desk = Desk(spec(batch=1, staleness=0, rows=1), stall_s=60.0, heartbeat_s=1000.0)
    desk.prompts(1)
    rollout = desk.join("rollout-0")
    desk.put(rollout, desk.pull(rollout)[0])
    desk.wait(60.0)
    assert "stage 'forward': nobody of a role that serves stage 'forward' has joined, though 1 rows are ready for it" in desk.core.status().reason
    desk = Desk(plain(batch=1, staleness=0), stall_s=60.0, heartbeat_s=1000.0)
    desk.prompts(3)
    rollout, trainer = desk.join("rollout-0"), desk.join("trainer", "trainer")
    train_step(desk, rollout, trainer, 0)
    desk.send(rollout.connection, m.Pull(topic="t", loaded=0, limit=1, wait_s=600.0, **rollout.fields))
    desk.wait(60.0)
    assert "does not come back from handing version 1 of 'policy' to the publisher" in desk.core.status().reason


def test_nobody_registered_is_no_stall() -> None:
    desk = Desk(plain(), stall_s=5.0)
    desk.wait(100.0)
    assert not desk.core.stopped


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"consumers": ()}, "no terminal consumer"),
        ({"prompts_bound": 0}, "prompts_bound=0"),
        ({"window": m.Window(batch=0, staleness=1)}, "batch=0"),
        ({"window": m.Window(batch=1, staleness=-1)}, "staleness=-1"),
        ({"consumers": (m.Consumer(name="t", inputs=("nothing",), unit="group", terminal=True),)}, "'nothing'"),
        ({"consumers": (m.Consumer(name="t", inputs=(), terminal=True),)}, "unit 'row'"),
        ({"consumers": (m.Consumer(name="t", inputs=("tokens",), outputs=("tokens",), unit="group", terminal=True),)}, "'tokens'"),
    ],
)
def test_topics_that_cannot_work_are_refused_at_start(change: dict[str, object], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        Desk(msgspec.structs.replace(plain(), **change))


def test_two_topics_of_one_model_are_refused() -> None:
    with pytest.raises(ValueError, match="model of its own"):
        Core(CoreConfig(topics=[plain(), msgspec.structs.replace(plain(), name="u")]), Log(), lambda: 0.0)


def test_deadlines_are_named_and_forgotten_timers_do_not_pile_up() -> None:
    desk = Desk(plain(), heartbeat_s=1e6, stall_s=1e6)
    who = desk.join("x", "worker")
    for _ in range(3000):
        number = desk.send(who.connection, m.Take(topic="t", consumer="trainer", limit=1, step=0, wait_s=30.0, **who.fields))
        desk.ask(who.connection, m.Cancel(target=number), m.OkEmpty)
    assert len(desk.core._runtime.timers._heap) < 200
    number = desk.send(who.connection, m.Take(topic="t", consumer="trainer", limit=1, step=0, wait_s=30.0, **who.fields))
    assert desk.core.next_deadline() == desk.clock.now + 30.0
    desk.wait(30.0)
    assert number in desk.replies
