"""Draining: nothing new is handed out, what is under way is finished, then the run ends."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import queue_run as run
from controller_desk import Desk, plain
from queue_processes import Process

from transfer_queue import messages as m
from transfer_queue.client import QueueClient

WAIT_S = 20.0


def test_hand_outs_stop_and_what_is_under_way_can_be_finished() -> None:
    desk = Desk(plain(batch=1))
    rollout, trainer = desk.join("rollout-0"), desk.join("trainer", "trainer")
    desk.prompts(3)
    (first,) = desk.pull(rollout, 1)
    desk.put(rollout, first)
    (second,) = desk.pull(rollout, 1)
    taken = desk.take(trainer, step=0)
    parked = desk.send(trainer.connection, m.Take(topic="t", consumer="trainer", limit=1, step=0, wait_s=5.0, **trainer.fields))
    desk.ask(b"operator", m.Drain(reason="maintenance"), m.OkEmpty)
    assert desk.watch(rollout).state == "drain"
    assert desk.pull(rollout, 1) == []
    assert parked not in desk.replies, "it waits, so that it does not ask in circles"
    assert not desk.core.drained
    assert desk.put(rollout, second) == []
    assert not desk.core.drained, "a whole batch is with the trainer"
    desk.ask(trainer.connection, desk.commit(trainer, 0, [taken.lease]), m.OkCommitted)
    assert desk.core.drained
    assert desk.take(trainer, step=1).lease == -1
    desk.wait(6.0)
    assert isinstance(desk.replies[parked], m.OkTaken)
    desk.ask(b"operator", m.Stop(reason="drained"), m.OkEmpty)
    assert desk.watch(rollout).state == "stop"


def test_a_stall_is_no_stall_while_nothing_is_handed_out() -> None:
    desk = Desk(plain(), stall_s=5.0, heartbeat_s=1e9)
    desk.join("rollout-0")
    desk.ask(b"operator", m.Drain(reason="maintenance"), m.OkEmpty)
    for _ in range(10):
        desk.wait(3.0)
    assert not desk.core.stopped


def test_sigterm_ends_the_run_when_what_is_under_way_is_done(tmp_path: Path) -> None:
    with ExitStack() as stack:
        controller = stack.enter_context(Process("kept_controller", str(tmp_path / "journal")))
        url = controller.heard()
        shard = stack.enter_context(Process("shard", url))
        shard.heard()
        source, rollout = (stack.enter_context(QueueClient.connect(url, name=name, role=name)) for name in ("source", "rollout"))
        run.put_prompts(source, range(4))
        leases = rollout.pull(run.TOPIC, 0, 1).result(WAIT_S).groups
        controller.popen.terminate()
        watch, deadline = rollout.watch(wait_s=0.0).result(WAIT_S), run.Deadline(WAIT_S)
        while watch.directive.state == "run":
            deadline.check("the directive does not become drain")
            watch = rollout.watch(seen=watch.directive.revision, wait_s=1.0).result(WAIT_S)
        assert watch.directive.state == "drain"
        assert run.put_groups(rollout, leases, 0) == [], "it is let finish"
        while watch.directive.state == "drain":
            deadline.check("the directive does not become stop")
            watch = rollout.watch(seen=watch.directive.revision, wait_s=1.0).result(WAIT_S)
        assert (watch.directive.state, watch.directive.reason) == ("stop", "drained")
        for client in (source, rollout):
            client.leave().result(WAIT_S)
        assert controller.popen.wait(WAIT_S) == 0
        assert shard.popen.wait(WAIT_S) == 0


def test_sigterm_ends_the_run_at_its_deadline_though_somebody_never_finishes(tmp_path: Path) -> None:
    with ExitStack() as stack:
        controller = stack.enter_context(Process("kept_controller", str(tmp_path / "journal"), "commit", "20", str(1 << 26), "0.2"))
        url = controller.heard()
        shard = stack.enter_context(Process("shard", url))
        shard.heard()
        source, rollout = (stack.enter_context(QueueClient.connect(url, name=name, role=name)) for name in ("source", "rollout"))
        run.put_prompts(source, range(4))
        assert rollout.pull(run.TOPIC, 0, 1).result(WAIT_S).groups
        controller.popen.terminate()
        watch, deadline = rollout.watch(wait_s=0.0).result(WAIT_S), run.Deadline(WAIT_S)
        while watch.directive.state != "stop":
            deadline.check("the directive does not become stop")
            watch = rollout.watch(seen=watch.directive.revision, wait_s=1.0).result(WAIT_S)
        for client in (source, rollout):
            client.leave().result(WAIT_S)
        assert controller.popen.wait(WAIT_S) == 0


def test_a_controller_that_was_killed_while_it_drained_comes_back_and_ends_the_run(tmp_path: Path) -> None:
    settings = (str(tmp_path / "journal"), "commit", "20", str(1 << 26), "1.0")
    with ExitStack() as stack:
        controller = stack.enter_context(Process("kept_controller", *settings))
        url = controller.heard()
        shard = stack.enter_context(Process("shard", url))
        shard.heard()
        source, rollout = (stack.enter_context(QueueClient.connect(url, name=name, role=name)) for name in ("source", "rollout"))
        run.put_prompts(source, range(4))
        assert rollout.pull(run.TOPIC, 0, 1).result(WAIT_S).groups
        controller.popen.terminate()
        watch, deadline = rollout.watch(wait_s=0.0).result(WAIT_S), run.Deadline(WAIT_S)
        while watch.directive.state == "run":
            deadline.check("the directive does not become drain")
            watch = rollout.watch(seen=watch.directive.revision, wait_s=0.2).result(WAIT_S)
        assert watch.directive.state == "drain"
        controller.popen.kill()
        controller.popen.wait(WAIT_S)
        again = stack.enter_context(Process("kept_controller", *settings))
        assert again.heard() == url
        deadline = run.Deadline(8.0)
        while watch.directive.state != "stop":
            deadline.check("the directive does not become stop")
            watch = rollout.watch(seen=watch.directive.revision, wait_s=1.0).result(WAIT_S)
        for client in (source, rollout):
            client.leave().result(WAIT_S)
        assert again.popen.wait(WAIT_S) == 0
