"""The run as a whole: its topics and members, when it is complete, and when it is stuck."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from transfer_queue.controller import status
from transfer_queue.controller.blame import blame
from transfer_queue.controller.blocks import FrozenBlocks
from transfer_queue.controller.config import CoreConfig, check_config
from transfer_queue.controller.control import Control, FrozenControl
from transfer_queue.controller.errors import RequestError
from transfer_queue.controller.freezing import FrozenTopic, freeze, thaw
from transfer_queue.controller.keyed import freezing, losing
from transfer_queue.controller.keyed.freezing import FrozenPartition
from transfer_queue.controller.keyed.handling import Keyed
from transfer_queue.controller.members import Member
from transfer_queue.controller.parked import Expired, FrozenWaiter, Parked
from transfer_queue.controller.repeats import FrozenLine
from transfer_queue.controller.runtime import FrozenRuntime, Observer, Runtime
from transfer_queue.controller.saves import FrozenSaves, Saves
from transfer_queue.controller.scene import Scene
from transfer_queue.controller.stall import report
from transfer_queue.controller.timers import Due, Timer
from transfer_queue.controller.topic import TopicState
from transfer_queue.controller.traffic import Traffic
from transfer_queue.messages import Record, StallReport, StatusRecord

COMPLETED = "completed"
BEAT = 0.25  # of `heartbeat_s`: a look of a member that was silent for so long counts as heard
WARN = 0.5  # of the time after which a run without progress is stopped


class FrozenRun(Record, frozen=True):
    """What a snapshot keeps of everything."""

    runtime: FrozenRuntime
    control: FrozenControl
    topics: dict[str, FrozenTopic]
    parked: list[FrozenWaiter]
    repeats: list[FrozenLine]
    blocks: FrozenBlocks
    saves: FrozenSaves
    stalls: list[Due | None]  # when it is looked whether anything goes on
    keyed: dict[str, FrozenPartition]


class Run:
    def __init__(self, config: CoreConfig, observer: Observer, clock: Callable[[], float]) -> None:
        check_config(config)
        self.runtime = Runtime(observer, clock)
        self.topics = {spec.name: TopicState(spec, self.runtime, config.lease_s) for spec in config.topics}
        self.keyed = Keyed(self.runtime)
        self.parked = Parked(self.runtime.timers)
        self.control = Control(self.topics, self.parked, self.runtime, config)
        self.saves = Saves(self.topics, self.keyed, self.control, self.runtime)
        self.control.on_end = self.saves.forget
        self.control.on_lost = partial(losing.lose_shard, self.keyed)
        self._config = config
        self.traffic = Traffic()
        self.on_stall: Callable[[StallReport], None] = lambda report: None  # gets the report before the run is stopped for it; must not raise
        self.doing: Callable[[str], str] = lambda member: ""  # member's name → what its process does now, "" where nobody can tell
        self._checks = (self._check_slow, self._check_stall)
        start_s, shares = self.runtime.now(), (WARN, 1.0)
        self._stalls: list[Timer | None] = [
            self.runtime.timers.at(start_s + share * config.stall_s, check) for share, check in zip(shares, self._checks, strict=True)
        ]

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

    def is_beat(self, request: Any) -> bool:
        """Whether a request that only looks counts as a heartbeat of its member: only where it was not heard for a while, so that few looks change
        anything."""
        member = self.control.members.find(request.member)
        known = member is not None and member.incarnation == request.incarnation
        return known and self.runtime.now() - member.seen >= BEAT * self._config.heartbeat_s  # type: ignore[union-attr]

    def looker(self, request: Any) -> Member:
        """The alive member that a request comes from which only looks."""
        return self.member(request) if self.is_beat(request) else self.control.members.of(request.member, request.incarnation)

    def complete(self) -> None:
        """Stop the run if every topic trained its target, the last version is published, and the last duty is done."""
        desired = self.control.desired
        if desired.stopped or self._config.keyed_only:
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

    @property
    def drained(self) -> bool:
        """Nothing is under way that could be finished: no group is generated, no stage has a lease, and no trainer has a whole batch."""
        return self.control.desired.draining and not any(topic.under_way() for topic in self.topics.values())

    def waits(self) -> StallReport:
        """Who waits for what, since when, and whose move it is; any time."""
        desired, control = self.control.desired, self.control
        scene = Scene(self._config, list(self.topics.values()), control.members, self.parked, desired, control.duties, self.runtime, self.doing)
        return report(scene, blame(scene))

    def _check_slow(self) -> float | None:
        """Halfway to a stall people are told, once; once it goes on again that is over."""
        due = self._idle_at(WARN)
        if self.stopped:
            return None
        if self.runtime.now() < due:
            self.control.desired.warn("")
            return due
        if not self.control.desired.warning:
            try:
                waits = self.waits()
            except Exception as error:  # a search that fails must not end a run that may only be slow
                self.runtime.emit("run", reason=f"who waits for whom could not be told: {error!r}", data={"traceback": traceback.format_exc()})
                return self._idle_at(1.0)
            text = f"slow: no progress for {waits.idle_s:.1f} s of stall_s = {waits.stall_s:g} s: {waits.verdict}"
            self.runtime.emit("slow", reason=text)
            self.control.desired.warn(text)
        return self._idle_at(1.0)

    def _check_stall(self) -> float | None:
        due = self._idle_at(1.0)
        if self.stopped:
            return None
        if self.runtime.now() < due:
            return due
        waits = self.waits()
        text = f"stall: no progress for {waits.idle_s:.1f} s: {waits.verdict}"
        self.runtime.emit("stall", reason=text)
        self.on_stall(waits)
        self.control.desired.stop(text)
        return None

    def _idle_at(self, share: float) -> float:
        """When the run will have made no progress for this share of `stall_s`."""
        idle = self._config.keyed_only or self.control.desired.state in ("pause", "drain")
        if idle or not len(self.control.members):
            self.runtime.touch()  # nobody is expected to make progress
        return self.runtime.changed_at + share * self._config.stall_s

    def freeze(self) -> FrozenRun:
        """Between two inputs. It shares what is no array with the run: encode it before the next."""
        return FrozenRun(
            runtime=self.runtime.freeze(),
            control=self.control.freeze(),
            topics={name: freeze(topic) for name, topic in self.topics.items()},
            parked=self.parked.freeze(),
            repeats=self.runtime.repeats.freeze(),
            blocks=self.runtime.blocks.freeze(),
            saves=self.saves.freeze(),
            stalls=[None if timer is None else timer.freeze() for timer in self._stalls],
            keyed=freezing.freeze(self.keyed),
        )

    def thaw(self, frozen: FrozenRun, expired: Expired) -> None:
        """Into a new run of the same configuration, which becomes what `frozen` was. `expired` answers parked requests at their deadlines."""
        timers = self.runtime.timers
        self.runtime.thaw(frozen.runtime)
        for name, topic in self.topics.items():
            thaw(topic, frozen.topics[name])
        freezing.thaw(self.keyed, frozen.keyed)
        self.control.thaw(frozen.control)
        self.parked.thaw(frozen.parked, expired)
        self.runtime.repeats.thaw(frozen.repeats)
        self.runtime.blocks.thaw(frozen.blocks)
        self.saves.thaw(frozen.saves)
        armed = zip(self._checks, frozen.stalls, strict=True)
        self._stalls = [None if due is None else timers.restore(check, due) for check, due in armed]

    def status(self) -> StatusRecord:
        desired = self.control.desired
        return StatusRecord(
            state=desired.state,
            reason=desired.reason,
            members={member.owner: member.role for member in self.control.members},
            topics=[status.topic_status(topic, self.parked, desired.weights.get(topic.spec.model)) for topic in self.topics.values()],
            idle_s=self.runtime.now() - self.runtime.changed_at,
            stall_s=self._config.stall_s,
            uptime_s=self.runtime.elapsed(),
            silent_s=self._silent(),
            shards=self.control.members.shards(),
            traffic=self.traffic.status(),
            partitions=[partition.status() for partition in self.keyed.partitions.values()],
        )

    def _silent(self) -> dict[str, float]:
        """Role → how long nothing was heard of one of its members, the longest."""
        longest: dict[str, float] = {}
        for member in self.control.members:
            longest[member.role] = max(longest.get(member.role, 0.0), self.runtime.now() - member.seen)
        return longest
