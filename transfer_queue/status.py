"""The queue's state as text for a person at a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from transfer_queue.messages import Column, ConsumerStatus, PartitionStatus, ReplayStatus, StatusRecord, TopicSpec, TopicStatus, TrafficStatus
from transfer_queue.operation.report import QueueReport, ShardReport
from transfer_queue.operation.upstream import readers, waits_for
from transfer_queue.waits import one_a_line, table
from transfer_queue.waits import render as render_waits

MOST = 8  # members of one list
SHOWN = 64  # characters of a name that somebody chose
UNITS = ("kB", "MB", "GB", "TB", "PB", "EB")


def render(report: QueueReport) -> str:
    """The run, its shards, a paragraph a topic (columns, groups by state, permits, bytes, each stage and who waits there for what) and a line a keyed
    partition; then, where it was asked for, who waits since when, with the ages of leases."""
    lines = [*_run(report.status), *_shards(report.shards)]
    for topic in report.status.topics:
        lines += _topic(topic)
    lines += [_partition(partition) for partition in report.status.partitions]
    return one_a_line(lines) + ("" if report.waits is None else f"\n\n{render_waits(report.waits)}")


def _run(status: StatusRecord) -> Iterator[str]:
    reason = f" ({status.reason})" if status.reason else ""
    yield f"state {status.state}{reason}, idle for {status.idle_s:.1f} s, up for {status.uptime_s:.1f} s"
    yield "members " + (", ".join(f"{member} {role}" for member, role in sorted(status.members.items())) or "none")
    yield from _traffic(status.traffic)


def _traffic(traffic: TrafficStatus) -> Iterator[str]:
    cpu = "" if traffic.cpu_s is None else f", {traffic.cpu_s:.1f} s of processor time"
    refused = f", refused {_counts(traffic.refused)}" if traffic.refused else ""
    yield f"requests {sum(traffic.requests.values())} since the start{refused}{cpu}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


# ------------------------------------------------------------ shards


def _shards(shards: list[ShardReport]) -> Iterator[str]:
    yield "shards" if shards else "shards none: nobody can store bytes"
    yield from table([_shard(shard) for shard in shards])


def _shard(shard: ShardReport) -> list[str]:
    head = [f"shard {shard.index}", shard.endpoint]
    stored = shard.stored
    if stored is None:
        return [*head, "does not answer", shard.error]
    resident = "" if stored.resident_bytes is None else f"{sized(stored.resident_bytes)} of memory, "
    used = f"{sized(stored.used_bytes)} of {sized(stored.capacity_bytes)} in {stored.blocks} blocks"
    ahead = f"{sized(stored.ahead_bytes)} reserved ahead by writers, " if stored.ahead_bytes else ""
    return [*head, used, f"{resident}{ahead}{sized(stored.idle_bytes)} free and warm, {sized(stored.held_bytes)} freed but held by readers"]


def sized(nbytes: int) -> str:
    """E.g. "1.5 GB"; powers of 1000."""
    if nbytes < 1000:
        return f"{nbytes} B"
    amount, power = nbytes / 1000, 0
    while amount >= 999.95 and power + 1 < len(UNITS):  # which would be told as 1000.0
        amount, power = amount / 1000, power + 1
    return f"{amount:.1f} {UNITS[power]}"


# ------------------------------------------------------------ topics


def _topic(topic: TopicStatus) -> Iterator[str]:
    target = "?" if topic.target is None else topic.target
    capacity = "unbounded" if topic.capacity is None else topic.capacity
    published = "none published" if topic.published is None else f"{topic.published} published"
    over = ", over" if topic.over else ""
    yield f"topic {topic.name}: version {topic.version}, {topic.ledger.get('trained', 0)} of {target} groups trained, {published}{over}"
    yield "  groups   " + (", ".join(f"{state} {count}" for state, count in sorted(topic.ledger.items())) or "none")
    yield f"  permits  {topic.permits} free of {capacity}, {topic.open} open, {topic.prompts_waiting} prompts wait"
    budget = "" if topic.spec is None else f" of {sized(topic.spec.admission_bytes)}"
    yield f"  bytes    {sized(topic.reserved_bytes)} reserved{budget}, {topic.stored_rows} rows stored"
    yield f"  again    {topic.lost_attempts} groups came back undone, {_expired(topic)} leases ran out, {topic.late} messages came too late"
    yield f"  oldest   {topic.oldest_open}"
    if topic.spec is not None:
        yield "  columns"
        yield from (f"  {line}" for line in table([_column(topic.spec, column) for column in topic.spec.columns]))
    yield "  stages"
    yield from (f"    {line}" for line in _producers(topic))
    yield from (f"    {line}" for consumer in topic.consumers for line in _consumer(topic, consumer))


def _partition(partition: PartitionStatus) -> str:
    ready = "".join(f", {count} ready for {task:.{SHOWN}}" for task, count in partition.tasks.items())
    return f"partition {partition.name:.{SHOWN}}: {partition.keys} keys, {partition.columns} columns, {sized(partition.nbytes)}{ready}"


def _expired(topic: TopicStatus) -> int:
    return sum(consumer.expired_leases for consumer in topic.consumers)


def _column(spec: TopicSpec, column: Column) -> list[str]:
    shape = f" {list(column.shape)}" if column.shape else ""
    kind = column.kind if column.kind in ("blob", "text", "object") else f"{column.dtype}{shape} {column.kind}"
    more = [word for word, said in (("shared", column.shared), ("optional", column.optional)) if said]
    reads = ", ".join(readers(spec, column.name)) or "nobody"
    return [column.name, " ".join([kind, *more]), f"of {column.producer}", f"read by {reads}"]


def _producers(topic: TopicStatus) -> Iterator[str]:
    """Source and producer, which are no consumers: only whether somebody waits there."""
    names = [consumer.name for consumer in topic.consumers]
    for stage, members in topic.asking.items():
        if stage not in names:
            yield f"{stage}: waiting: {_members(members)}"


def _consumer(topic: TopicStatus, consumer: ConsumerStatus) -> Iterator[str]:
    leases = "" if consumer.oldest_lease_s is None else f" ({consumer.leases} leases, the oldest {consumer.oldest_lease_s:.1f} s)"
    counts = f"{consumer.done_rows} rows done, {consumer.leased_rows} leased{leases}, {consumer.ready_rows} ready"
    waiting = topic.asking.get(consumer.name, {})
    what = f" for {needs}" if waiting and (needs := waits_for(topic, consumer)) else ""
    yield f"{consumer.name}: {counts}" + (f", waiting: {_members(waiting)}{what}" if waiting else "")
    if consumer.replay is not None:
        yield f"  replay: {_replay(consumer.replay)}"
    if consumer.fallbacks:
        yield f"  sampler fell back {consumer.fallbacks} times, last: {consumer.sampler_fault}"


def _replay(replay: ReplayStatus) -> str:
    left = {"evicted": replay.evicted, "expired": replay.expired, "lost": replay.lost, "given up": replay.dropped, "without room": replay.no_room}
    kept = f"{replay.kept} groups kept in {sized(replay.kept_bytes)}, {replay.leased} of them leased, {replay.replayed} replayed"
    return ", ".join([kept, *(f"{count} {why}" for why, count in left.items() if count)])


def _members(ages: Mapping[str, float]) -> str:
    """The longest first."""
    shown = [f"{member} {age:.1f} s" for member, age in sorted(ages.items(), key=lambda entry: -entry[1])]
    return ", ".join(shown[:MOST]) + (f", … {len(shown) - MOST} more" if len(shown) > MOST else "")
