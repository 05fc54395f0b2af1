"""A controller that did not run for a while: nobody is dead, no lease has run out and no run is stuck for what could not be heard meanwhile."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import pytest
import zmq
from controller_bench import Log
from controller_desk import Desk, plain

from transfer_queue import messages as m
from transfer_queue.controller.core import Core, CoreConfig
from transfer_queue.controller.server import FROZEN_S, LoopClock, Server
from transfer_queue.wire import encode


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
    clock = LoopClock()
    core = Core(CoreConfig(topics=[plain()], heartbeat_s=10.0, stall_s=1e6), log, clock)
    core.handle(b"c", m.Register(id=1, name="x", role="worker", pid=1, host="h"))
    core.handle(b"c", m.Watch(id=2, seen=10_000, wait_s=1.0, member="x", incarnation=0))
    core.outbox.clear()
    socket: Any = Sleeper(pass_time)
    server = Server(core, socket, None, clock)
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


class Served:
    """A loop around a real state machine; its socket has two heartbeats of one member, and the process is stopped (or works) before the second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.worked = 1000.0
        self.gap_s = self.work_s = self.stop_s = 0.0
        self.left = 0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "thread_time", lambda: self.worked)
        self.log = Log()
        clock = LoopClock()
        self.core = Core(CoreConfig(topics=[plain()], heartbeat_s=10.0, stall_s=1e6), self.log, clock)
        self.core.handle(b"c", m.Register(id=1, name="x", role="worker", pid=1, host="h"))
        socket: Any = self
        self.server = Server(self.core, socket, None, clock)

    def get(self, option: int) -> int:
        return int(zmq.POLLIN) if self.left else 0

    def recv_multipart(self, flags: int) -> list[bytes]:
        self.left -= 1
        if not self.left:
            self.now += self.gap_s + self.work_s
            self.worked += self.work_s
        return [b"c", encode(m.Watch(id=self.left + 2, seen=-1, wait_s=0.0, member="x", incarnation=0))]

    def poll(self, timeout_ms: int) -> int:
        self.now += max(timeout_ms / 1000, self.stop_s)
        return 0

    def send(self, frame: bytes, flags: int) -> None:
        """Nobody reads."""

    def turn(self, messages: int) -> None:
        """As `Server.run` does it."""
        self.left = messages
        self.server._receive()
        self.server._notice_gap(-math.inf)
        self.core.tick()
        self.server.flush()


def test_what_is_taken_in_after_a_gap_inside_a_burst_does_not_count_as_heard_later_than_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the gap was noticed after the burst: the member counted as heard an hour later than now, and its death was found an hour too late."""
    served = Served(monkeypatch)
    served.gap_s = 3600.0
    served.turn(2)
    assert [event.data["seconds"] for event in served.log.of("run")] == [pytest.approx(3600.0, abs=0.01)]
    for _ in range(11):
        served.server._notice_gap(served.server._wait(math.inf))
    served.core.tick()
    assert not served.core.members


def test_a_loop_that_is_slow_by_its_own_work_does_not_put_deadlines_off_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(monkeypatch)
    served.work_s = FROZEN_S + 1.0
    served.core.handle(b"d", m.Register(id=1, name="y", role="worker", pid=1, host="h"))
    for _ in range(5):
        served.turn(2)
    assert [member.name for member in served.core.members] == ["x"], "nobody heard of y for 15 s, of which 10 are enough"
    assert served.log.of("run") == []


def test_a_stop_is_noticed_also_where_the_next_deadline_was_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right after a commit no heartbeat is parked: a stop of 11.5 s inside the wait for a deadline in 10 s looked like 1.5 s, and everybody died."""
    served = Served(monkeypatch)
    served.stop_s = 11.5
    served.server._notice_gap(served.server._wait(math.inf))
    served.core.tick()
    assert len(served.core.members) == 1
    assert [event.data["seconds"] for event in served.log.of("run")] == [pytest.approx(10.5, abs=0.01)]


def test_a_stop_between_the_look_and_the_deadlines_kills_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was noticed at the next look only, when everybody was dead; and then as 1.5 s, for the wait was for a deadline in 10 s."""
    served = Served(monkeypatch)
    served.server._notice_gap(-math.inf)
    served.now += 11.5
    served.core.tick()
    served.server._notice_gap(-math.inf)
    served.core.tick()
    assert len(served.core.members) == 1
    assert [event.data["seconds"] for event in served.log.of("run")] == [pytest.approx(11.5, abs=0.01)]
