"""A controller that did not run for a while: nobody is dead, no lease has run out and no run is stuck for what could not be heard meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import zmq
from controller_bench import Log
from controller_desk import Desk, plain

from transfer_queue import messages as m
from transfer_queue.controller.core import Core, CoreConfig
from transfer_queue.controller.server import FROZEN_S, Server


def test_a_gap_moves_every_deadline_by_as_much() -> None:
    desk = Desk(plain(), heartbeat_s=10.0, lease_s=8.0, stall_s=20.0)
    desk.prompts(1)
    rollout = desk.join("rollout-0")
    lease = desk.pull(rollout)[0]
    parked = desk.send(rollout.connection, m.Watch(seen=10_000, wait_s=1.0, **rollout.fields))
    before = desk.core.next_deadline()
    assert before == desk.clock.now + 1.0
    desk.clock.now += 100.0
    desk.core.frozen(100.0)
    assert desk.core.next_deadline() == before + 100.0
    desk.wait(0.9)
    assert parked not in desk.replies
    desk.wait(0.2)
    assert parked in desk.replies
    assert [member.name for member in desk.core.members] == ["source", "rollout-0"]
    assert desk.states() == {0: "admitted"}
    assert [event.data for event in desk.log.of("run")] == [{"seconds": 100.0}]
    desk.wait(7.0)
    assert desk.topic.groups[0].holder is None, "8 s of the controller's time are over"
    desk.wait(3.0)
    assert not desk.core.members, "10 s, and nobody was heard"
    assert lease.gid == 0


class Sleeper:
    """A socket whose `poll` takes as long as the test says: the process was stopped meanwhile."""

    def __init__(self, clock: Callable[[float], None]) -> None:
        self._pass, self.over_s = clock, 0.0

    def poll(self, timeout_ms: int | None) -> int:
        self._pass((timeout_ms or 0) / 1000 + self.over_s)
        return 0

    def recv_multipart(self, flags: int) -> list[bytes]:
        raise zmq.Again


@pytest.mark.parametrize("over_s", [30.0, 0.5, 0.0])
def test_the_loop_notices_that_it_came_back_too_late(over_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0

    def pass_time(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now)
    log = Log()
    core = Core(CoreConfig(topics=[plain()], heartbeat_s=10.0, stall_s=1e6), log, lambda: now)
    core.handle(b"c", m.Register(id=1, name="x", role="worker", pid=1, host="h"))
    core.handle(b"c", m.Watch(id=2, seen=10_000, wait_s=1.0, member="x", incarnation=0))
    core.outbox.clear()
    socket: Any = Sleeper(pass_time)
    server = Server(core, socket, None)
    socket.over_s = over_s
    server._notice_gap(server._wait(now + 1e6))
    core.tick()
    assert len(core.members) == 1
    frozen = [event.data["seconds"] for event in log.of("run")]
    assert frozen == ([pytest.approx(over_s, abs=0.01)] if over_s > FROZEN_S else [])
    socket.over_s = 0.0
    for _ in range(20):
        server._notice_gap(server._wait(now + 1e6))
        core.tick()
        if not core.members:
            break
    assert not core.members, "a member that stays silent while the controller runs is dead after all"
