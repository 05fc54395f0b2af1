"""One snapshot of everything that is not tensor bytes. It reads counts that are kept anyway; it never walks what is stored."""

from __future__ import annotations

from transfer_queue.controller.group import Group
from transfer_queue.controller.parked import Parked
from transfer_queue.controller.rounds import waits_for_its_rank
from transfer_queue.controller.topic import TopicState
from transfer_queue.messages import ConsumerStatus, ModelVersion, TopicStatus


def topic_status(topic: TopicState, parked: Parked, published: ModelVersion | None) -> TopicStatus:
    return TopicStatus(
        name=topic.name,
        version=topic.version,
        ledger=dict(topic.ledger.counts),
        permits=permits(topic),
        capacity=topic.window.capacity,
        open=topic.ledger.open,
        prompts_waiting=len(topic.prompts),
        target=topic.prompts.target,
        reserved_bytes=topic.ledger.open * topic.spec.window.group_bytes,
        stored_rows=topic.stored_rows,
        consumers=_consumers(topic, parked),
        oldest_open=oldest_open(topic),
        late=topic.late,
        oldest_open_s=_oldest_open_s(topic),
        published=None if published is None else published.version,
        over=topic.over,
        lost_attempts=topic.lost_attempts,
        asking=_asking(topic),
        spec=topic.spec,
    )


def permits(topic: TopicState) -> int:
    """Groups that could be admitted now, by window and bytes."""
    window = topic.spec.window
    by_bytes = topic.window.budget_bytes // window.group_bytes if window.group_bytes else topic.ledger.open + window.batch
    capacity = by_bytes if topic.window.capacity is None else min(by_bytes, topic.window.capacity)
    return max(0, capacity - topic.ledger.open)


def _consumers(topic: TopicState, parked: Parked) -> list[ConsumerStatus]:
    leased = [0] * len(topic.schema.consumers)
    for lease in topic.leases:
        leased[lease.consumer] += lease.count()
    counts, begun = _leases(topic)
    return [
        ConsumerStatus(
            name=consumer.name,
            done_rows=topic.done_rows[number],
            leased_rows=leased[number],
            ready_rows=topic.queues.rows[number],
            waiting=[waiter.owner for waiter in parked.of(("take", topic.name, consumer.name))],
            leases=counts.get(number, 0),
            oldest_lease_s=topic.runtime.now() - begun[number] if number in begun else None,
            expired_leases=topic.expired[number],
            fallbacks=topic.queues.pickers[number].fallbacks,
            sampler_fault=topic.queues.pickers[number].fault,
            replay=topic.replays[number].status() if number in topic.replays else None,
        )
        for number, consumer in enumerate(topic.schema.consumers)
    ]


def _leases(topic: TopicState) -> tuple[dict[int, int], dict[int, float]]:
    """By consumer that has any: how many a member has, and when the oldest was given."""
    counts, begun = dict[int, int](), dict[int, float]()
    for lease in (lease for lease in topic.leases if not waits_for_its_rank(lease)):
        counts[lease.consumer] = counts.get(lease.consumer, 0) + 1
        begun[lease.consumer] = min(lease.since, begun.get(lease.consumer, lease.since))
    return counts, begun


def _asking(topic: TopicState) -> dict[str, dict[str, float]]:
    """Stage → member → seconds in vain."""
    now, schema = topic.runtime.now(), topic.schema
    found = {name: topic.askers.waiting(name) for name in (schema.source, schema.generator, *schema.numbers)}
    return {name: {owner: now - since for owner, since in owners.items()} for name, owners in found.items() if owners}


def _oldest_open_s(topic: TopicState) -> float | None:
    group = topic.groups.first()
    return None if group is None else topic.runtime.now() - group.since


def oldest_open(topic: TopicState) -> str:
    """The group that is open longest: gid, state, what it waits for, since when."""
    group = topic.groups.first()
    if group is None:
        return "no group is open"
    since = topic.runtime.now() - group.since
    return f"group {group.gid} (version {group.version}) is {group.state} since {since:.1f} s, waiting for {waits_for(topic, group)}"


def waits_for(topic: TopicState, group: Group) -> str:
    if group.state == "leased":
        names = [topic.schema.consumers[number].name for number in sorted(group.leased_by)]
        return f"the commit of {', '.join(names)}"
    if group.state in ("admitted", "generating"):
        if group.holder is not None:
            return f"rows {group.missing_rows()[:8]} from {group.holder}"
        needed = topic.restart_version(group)
        return f"a producer with weights of version {needed} or newer"
    return missing_columns(topic, group) or f"a take of {topic.schema.consumers[topic.schema.terminals[0]].name}"


def missing_columns(topic: TopicState, group: Group) -> str:
    """Columns that a terminal consumer still misses, and the stage that owes them."""
    for number in topic.schema.terminals:
        for row in group.rows.values():
            needed = [name for name in topic.schema.consumers[number].inputs if number in topic.schema.readers.get(name, ())]
            if missing := [name for name in needed if name not in row.columns]:
                owners = sorted({column.producer for column in topic.spec.columns if column.name in missing})
                return f"columns {missing} of row {row.index} from {', '.join(owners)}"
    return ""
