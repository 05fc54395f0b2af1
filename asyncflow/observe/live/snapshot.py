"""Everything one picture is made of, at one moment."""

from __future__ import annotations

import msgspec

from asyncflow.config import RunConfig
from asyncflow.config.resources import RESERVED_ROLES
from asyncflow.config.root import POLICY
from asyncflow.observe.live.follow import RunState, Shares
from asyncflow.observe.live.marks import Marks
from asyncflow.workers.phase import Phase, Thread, read_phases
from transfer_queue.messages import StatusRecord, TopicStatus

LATE_S = 2.0  # a status older than this is old


class WorkerNow(msgspec.Struct, frozen=True):
    """One worker."""

    name: str
    role: str
    joined: bool
    left: str | None  # how it went; None: it did not
    restarts: int
    phases: dict[Thread, Phase]
    waits_for_rows: bool  # it is parked at the controller until a stage of its role has some
    shares: Shares | None  # of its last seconds; of the whole run, once that is over


class Snapshot(msgspec.Struct, frozen=True):
    """What the rendering reads, and nothing else."""

    config: RunConfig
    state: RunState
    status: StatusRecord | None
    status_age_s: float | None
    problem: str | None  # why there is no newer status
    workers: list[WorkerNow]
    marks: Marks
    ended: str | None = None  # why the run is over, where it is

    @property
    def topic(self) -> TopicStatus | None:
        """The trained model's; None where the newest step says more than a status that is old."""
        old = self.status_age_s is None or self.status_age_s > LATE_S
        topics = self.status.topics if self.status is not None and not (old and self.state.step is not None) else []
        return next((topic for topic in topics if topic.name == POLICY), None)


def workers_now(config: RunConfig, state: RunState, status: StatusRecord | None, ended: bool) -> list[WorkerNow]:
    """The configured workers in their order, then whoever joined besides. One small file is read for each that is there."""
    roles = {place.name: place.role for place in config.places()}
    roles |= {name: member.role for name, member in state.members.items() if member.role not in RESERVED_ROLES}
    topics = status.topics if status is not None else []
    waiting = {member.rpartition("#")[0] for topic in topics for consumer in topic.consumers for member in consumer.waiting}
    workers = []
    for name, role in roles.items():
        member = state.members.get(name)
        worker = WorkerNow(
            name=name,
            role=role,
            joined=member is not None,
            left=member.left if member is not None else None,
            restarts=member.restarts if member is not None else 0,
            phases=read_phases(config.run_dir, name) if member is not None else {},
            waits_for_rows=name in waiting,
            shares=state.in_all(name, role) if ended else state.lately(name, role),
        )
        workers.append(worker)
    return workers
