"""The report of a run that makes no progress: every stage, the oldest open group, admission and members, each with since when it waits."""

from __future__ import annotations

import numpy as np

from transfer_queue.controller.group import Group
from transfer_queue.controller.leases import Lease
from transfer_queue.controller.members import Member
from transfer_queue.controller.parked import Waiter
from transfer_queue.controller.producing import admission_bound
from transfer_queue.controller.scene import Scene
from transfer_queue.controller.status import missing_columns, permits
from transfer_queue.controller.topic import TopicState
from transfer_queue.messages import AdmissionWait, Blame, GroupWait, LeaseWait, MemberWait, StageWait, StallReport, TopicWait

SHOWN = 8  # gids of a lease
LEASES = 64  # of a stage


def report(scene: Scene, blame: Blame) -> StallReport:
    return StallReport(
        idle_s=scene.now - scene.runtime.changed_at,
        stall_s=scene.config.stall_s,
        blame=blame,
        topics=[_topic(scene, topic) for topic in scene.topics],
        members=[_member(scene, member) for member in scene.members],
    )


def _age(scene: Scene, at: float | None) -> float | None:
    return None if at is None else scene.now - at


# ------------------------------------------------------------ topics


def _topic(scene: Scene, topic: TopicState) -> TopicWait:
    published = scene.desired.weights.get(topic.spec.model)
    names = [topic.schema.source, topic.schema.generator, *(consumer.name for consumer in topic.schema.consumers)]
    return TopicWait(
        topic=topic.name,
        version=topic.version,
        published=None if published is None else published.version,
        committed_s=_age(scene, topic.progress_at.get(topic.schema.consumers[topic.clock_terminal.number].name)),
        ledger={state: count for state, count in topic.ledger.counts.items() if count},
        oldest=_oldest(scene, topic),
        admission=_admission(scene, topic),
        stages=[_stage(scene, topic, name) for name in names],
    )


def _admission(scene: Scene, topic: TopicState) -> AdmissionWait:
    bound = admission_bound(topic)
    pullers = [member for member in scene.serve(topic, topic.schema.generator) if member.owner in topic.askers.waiting(topic.schema.generator)]
    if not bound and pullers:
        free = [member for member in pullers if not scene.duties.holds_back(member)]
        needed = topic.window.min_version(topic.version, topic.ledger.open)
        if not free:
            bound = "duty"
        elif all(member.loaded.get(topic.spec.model, -1) < needed for member in free):
            bound = "min_version"
    return AdmissionWait(permits(topic), len(topic.prompts), bound)


def _stage(scene: Scene, topic: TopicState, name: str) -> StageWait:
    return StageWait(
        stage=name,
        ready_rows=_ready(topic, name),
        leases=_leases(scene, topic, name),
        waiting={owner: scene.now - since for owner, since in topic.askers.waiting(name).items()},
        members=[member.owner for member in scene.serve(topic, name)],
        gone={end.owner: scene.now - end.at for end in scene.gone(topic, name)},
        progress_s=_age(scene, topic.progress_at.get(name)),
    )


def _ready(topic: TopicState, name: str) -> int:
    if name == topic.schema.source:
        return len(topic.prompts)
    if name == topic.schema.generator:
        return int(np.count_nonzero(~topic.groups.groups.closed[topic.groups.all()])) - len(topic.groups.attempts)
    return topic.queues.rows[topic.schema.numbers[name]]


def _leases(scene: Scene, topic: TopicState, name: str) -> list[LeaseWait]:
    if name == topic.schema.generator:
        held = [Group(topic.groups, slot) for slot in topic.groups.attempts]
        return [
            LeaseWait(group.fence, str(group.holder), scene.now - (group.deadline - topic.lease_s), len(group.missing_rows()), [group.gid])
            for group in held[:LEASES]
        ]
    number = topic.schema.numbers.get(name, -1)
    lapsed = [_lease(scene, lease, True) for lease in topic.leases.lapsed() if lease.consumer == number and lease.count()]
    return [*lapsed, *(_lease(scene, lease, False) for lease in topic.leases if lease.consumer == number)][:LEASES]


def _lease(scene: Scene, lease: Lease, lapsed: bool) -> LeaseWait:
    return LeaseWait(lease.id, lease.owner, scene.now - lease.since, lease.count(), lease.gids()[:SHOWN], lapsed)


def _oldest(scene: Scene, topic: TopicState) -> GroupWait | None:
    """Of the oldest version, outside the trainer's batch if there is one: the batch waits for it."""
    batch = topic.clock_terminal.batch
    slots, table = topic.groups.all(), topic.groups.groups
    if not len(slots):
        return None
    inside = np.isin(table.gid[slots], list(batch))
    group = Group(topic.groups, int(slots[np.lexsort((table.gid[slots], table.version[slots], inside))[0]]))
    waits, owners = "a take of the trainer", list[str]()
    if group.leased_by:
        names = [topic.schema.consumers[number].name for number in sorted(group.leased_by)]
        waits, owners = f"the commit of {', '.join(names)}", [lease.owner for lease in topic.leases if lease.consumer in group.leased_by]
    elif not group.closed:
        needed = topic.restart_version(group)
        waits = f"rows {group.missing_rows()[:SHOWN]}" if group.holder is not None else f"a producer with weights of version {needed} or newer"
        owners = [] if group.holder is None else [group.holder]
    elif missing := missing_columns(topic, group):
        waits = missing
        owners = [lease.owner for lease in topic.leases.holding(np.array([group.slot])) if lease.holds(group)]
    return GroupWait(group.gid, group.version, group.state, scene.now - group.since, waits, list(dict.fromkeys(owners)))


# ------------------------------------------------------------ members


def _member(scene: Scene, member: Member) -> MemberWait:
    return MemberWait(
        member=member.owner,
        role=member.role,
        heard_s=scene.now - member.seen,
        activity=member.activity,
        activity_s=scene.now - member.activity_since,
        doing=scene.doing(member.name),
        loaded=dict(member.loaded),
        duty=member.duty,
        duty_s=None if member.duty is None else scene.now - member.duty_since,
        waits={_asks(waiter): scene.now - waiter.since for waiter in scene.parked.of_owner(member.owner) if waiter.key[0] != "watch"},
    )


def _asks(waiter: Waiter) -> str:
    """E.g. "Take train"."""
    return f"{type(waiter.request).__name__} {waiter.key[2] or waiter.key[1]}"
