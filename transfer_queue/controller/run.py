"""The run as a whole: its topics and members, when it is complete, and when it is stuck."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transfer_queue.controller import status
from transfer_queue.controller.config import CoreConfig, check_config
from transfer_queue.controller.control import Control
from transfer_queue.controller.errors import RequestError
from transfer_queue.controller.members import Member
from transfer_queue.controller.parked import Parked
from transfer_queue.controller.runtime import Observer, Runtime
from transfer_queue.controller.topic import TopicState
from transfer_queue.messages import StatusRecord

COMPLETED = "completed"


class Run:
    def __init__(self, config: CoreConfig, observer: Observer, clock: Callable[[], float]) -> None:
        check_config(config)
        self.runtime = Runtime(observer, clock)
        self.topics = {spec.name: TopicState(spec, self.runtime, config.lease_s) for spec in config.topics}
        self.parked = Parked(self.runtime.timers)
        self.control = Control(self.topics, self.parked, self.runtime, config)
        self._stall_s = config.stall_s
        self.runtime.timers.at(self.runtime.now() + config.stall_s, self._check_stall)

    @property
    def stopped(self) -> bool:
        return self.control.desired.stopped

    def topic(self, name: str) -> TopicState:
        topic = self.topics.get(name)
        if topic is None:
            known = sorted(self.topics)
            raise RequestError("unknown_topic", f"topic={name!r} does not exist, there are {known}: the request was not served; name one of them")
        return topic

    def member(self, request: Any) -> Member:
        """The alive member that a request comes from; the request counts as a heartbeat."""
        return self.control.members.check(request.member, request.incarnation, self.runtime.now())

    def complete(self) -> None:
        """Stop the run if every topic trained its target, the last version is published, and the last duty is done."""
        desired = self.control.desired
        if desired.stopped:
            return
        for topic in self.topics.values():
            weights = desired.weights.get(topic.spec.model)
            if not topic.over or weights is None or weights.version != topic.version:
                return
        for topic in self.topics.values():
            self.control.duties.final(topic.spec.model, topic.version)
        self.control.duties.assign()
        if self.control.duties.finished():
            desired.stop(COMPLETED)

    def _check_stall(self) -> float | None:
        now = self.runtime.now()
        desired = self.control.desired
        if desired.stopped:
            return None
        if desired.state == "pause" or not len(self.control.members):
            self.runtime.touch()  # nobody is expected to make progress
        if now < self.runtime.changed_at + self._stall_s:
            return self.runtime.changed_at + self._stall_s
        report = status.stall_report(list(self.topics.values()), self.control.members, self.parked, now - self.runtime.changed_at)
        self.runtime.emit("stall", reason=report)
        desired.stop(report)
        return None

    def status(self) -> StatusRecord:
        desired = self.control.desired
        return StatusRecord(
            state=desired.state,
            reason=desired.reason,
            members={member.owner: member.role for member in self.control.members},
            topics=[status.topic_status(topic, self.parked) for topic in self.topics.values()],
            idle_s=self.runtime.now() - self.runtime.changed_at,
        )
