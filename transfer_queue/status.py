"""The queue's state as text for a person at a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from transfer_queue.messages import StatusRecord, TopicStatus


def render(status: StatusRecord) -> str:
    """A few lines a topic: the ledger, permits, each consumer and who waits."""
    reason = f" ({status.reason})" if status.reason else ""
    lines = [f"state {status.state}{reason}, idle for {status.idle_s:.1f} s"]
    lines.append("members " + (", ".join(f"{member} {role}" for member, role in sorted(status.members.items())) or "none"))
    for topic in status.topics:
        lines += _topic(topic)
    return "\n".join(lines)


def _topic(topic: TopicStatus) -> Iterator[str]:
    target = "?" if topic.target is None else topic.target
    capacity = "unbounded" if topic.capacity is None else topic.capacity
    yield f"topic {topic.name}: version {topic.version}, {topic.ledger.get('trained', 0)} of {target} groups trained"
    yield "  groups   " + (", ".join(f"{state} {count}" for state, count in sorted(topic.ledger.items())) or "none")
    yield f"  permits  {topic.permits} free of {capacity}, {topic.open} open, {topic.prompts_waiting} prompts wait"
    yield f"  bytes    {topic.reserved_bytes} reserved, {topic.stored_rows} rows stored"
    for consumer in topic.consumers:
        waiting = f", waiting: {', '.join(consumer.waiting)}" if consumer.waiting else ""
        yield f"  {consumer.name}: {consumer.done_rows} rows done, {consumer.leased_rows} leased, {consumer.ready_rows} ready{waiting}"
        if consumer.fallbacks:
            yield f"    sampler fell back {consumer.fallbacks} times, last: {consumer.sampler_fault}"
    if topic.oldest_open:
        yield f"  oldest   {topic.oldest_open}"
