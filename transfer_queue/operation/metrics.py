"""The queue in Prometheus's words: base units, `_total` on what only grows, and no sample for what is not known.

Labels are topics, stages, shards (of the configuration), and words of ours; what members may choose freely goes through a `Vocabulary`. Nothing is
by member, group or step: those belong into an event log. Ages are seconds at the moment of the answer, for the queue's clock is no wall clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from transfer_queue.messages import ConsumerStatus, PartitionStatus, RunState, StatusRecord, TopicSpec, TopicStatus
from transfer_queue.operation.labels import Vocabulary
from transfer_queue.operation.report import QueueReport, ShardReport, ShardStored

PREFIX = "transfer_queue"
OPEN_STATES = ("admitted", "generating", "complete", "leased")
DROPPED = "dropped:"  # of the ledger's keys

Kind = type[GaugeMetricFamily] | type[CounterMetricFamily]
T = TypeVar("T")
Samples = Iterable[tuple[tuple[str, ...], float | None]]  # label values → value, None: not known


class Words:
    """What this endpoint has ever called by names that members chose."""

    def __init__(self) -> None:
        self.roles = Vocabulary(("shard",))
        self.reasons = Vocabulary(("stale", "run_end"))
        self.partitions = Vocabulary()


@dataclass(frozen=True)
class Measure(Generic[T]):
    """One family, and how it is read off what is measured."""

    kind: Kind
    name: str
    text: str
    read: Callable[[T], float | None]


def down() -> Iterator[Metric]:
    """What is told while the controller does not answer: that, and nothing stale."""
    yield _alone(GaugeMetricFamily, "up", UP, 0)


def families(report: QueueReport, words: Words) -> Iterator[Metric]:
    """Everything."""
    yield _alone(GaugeMetricFamily, "up", UP, 1)
    yield _alone(GaugeMetricFamily, "answer_seconds", "How long the controller took for its last answer to this endpoint.", report.answer_s)
    yield from _run(report.status, words)
    yield from _topics(report.status.topics, words)
    stages = [((topic.name, consumer.name), consumer) for topic in report.status.topics for consumer in topic.consumers]
    yield from _measured(STAGES, ("topic", "stage"), stages)
    yield from _partitions(report.status.partitions, words)
    yield from _shards(report.shards)


UP = "1 where the controller answered the last question, else 0."

# ------------------------------------------------------------ the run

RUN: tuple[Measure[StatusRecord], ...] = (
    Measure(GaugeMetricFamily, "uptime_seconds", "Since the controller's start.", lambda status: status.uptime_s),
    Measure(GaugeMetricFamily, "idle_seconds", "Since the last progress of the run.", lambda status: status.idle_s),
    Measure(GaugeMetricFamily, "stall_limit_seconds", "Idle seconds after which the run is stopped.", lambda status: status.stall_s),
    Measure(CounterMetricFamily, "controller_cpu_seconds", "Processor time of the controller's thread.", lambda status: status.traffic.cpu_s),
)


def _run(status: StatusRecord, words: Words) -> Iterator[Metric]:
    for measure in RUN:
        yield _alone(measure.kind, measure.name, measure.text, measure.read(status))
    states = [((state,), float(state == status.state)) for state in get_args(RunState)]
    yield _labelled(GaugeMetricFamily, "state", "1 for the desired state of the run, 0 for the others.", ("state",), states)
    members: dict[str, float] = {}
    for role in status.members.values():
        members[role] = members.get(role, 0) + 1
    by_role = ("role",)
    yield _labelled(GaugeMetricFamily, "members", "Members that are alive.", by_role, _by(words.roles.sums(members)))
    silent = _by(words.roles.largest(status.silent_s))
    yield _labelled(GaugeMetricFamily, "member_silence_seconds", "Since a member was last heard, the longest of its role.", by_role, silent)
    traffic = status.traffic
    yield _labelled(CounterMetricFamily, "requests", "Well-formed requests to the controller.", ("kind",), _by(traffic.requests))
    yield _labelled(CounterMetricFamily, "refused_requests", "Error replies of the controller.", ("code",), _by(traffic.refused))


# ------------------------------------------------------------ topics

TOPICS: tuple[Measure[TopicStatus], ...] = (
    Measure(GaugeMetricFamily, "version", "Global batches committed.", lambda topic: topic.version),
    Measure(GaugeMetricFamily, "published_version", "Newest version of the weights that was published.", lambda topic: topic.published),
    Measure(GaugeMetricFamily, "topic_over", "1 once the topic's target is trained.", lambda topic: topic.over),
    Measure(GaugeMetricFamily, "target_groups", "Groups to be trained in all.", lambda topic: topic.target),
    Measure(CounterMetricFamily, "trained_groups", "Groups trained.", lambda topic: topic.ledger.get("trained", 0)),
    Measure(GaugeMetricFamily, "permits_free", "Groups that may be admitted now, by window and bytes.", lambda topic: topic.permits),
    Measure(GaugeMetricFamily, "permits_capacity", "Most groups that may be open by the window.", lambda topic: topic.capacity),
    Measure(GaugeMetricFamily, "prompts_waiting", "Prompts that no producer has yet.", lambda topic: topic.prompts_waiting),
    Measure(GaugeMetricFamily, "stored_rows", "Rows of open groups.", lambda topic: topic.stored_rows),
    Measure(GaugeMetricFamily, "reserved_bytes", "Reserved for open groups at their worst case.", lambda topic: topic.reserved_bytes),
    Measure(GaugeMetricFamily, "budget_bytes", "Most bytes that may be reserved.", lambda topic: _budget(topic.spec)),
    Measure(GaugeMetricFamily, "oldest_group_seconds", "How long the group open longest has been in its state.", lambda topic: topic.oldest_open_s),
    Measure(CounterMetricFamily, "lost_attempts", "Groups handed out that came back undone.", lambda topic: topic.lost_attempts),
    Measure(CounterMetricFamily, "late_messages", "Puts, closes and write-backs that came too late.", lambda topic: topic.late),
)


def _budget(spec: TopicSpec | None) -> int | None:
    return None if spec is None else spec.admission_bytes


def _topics(topics: list[TopicStatus], words: Words) -> Iterator[Metric]:
    yield from _measured(TOPICS, ("topic",), [((topic.name,), topic) for topic in topics])
    opened = [((topic.name, state), topic.ledger.get(state, 0)) for topic in topics for state in OPEN_STATES]
    yield _labelled(GaugeMetricFamily, "groups", "Open groups by state.", ("topic", "state"), opened)
    dropped = [((topic.name, reason), count) for topic in topics for reason, count in words.reasons.sums(_dropped(topic)).items()]
    yield _labelled(CounterMetricFamily, "dropped_groups", "Groups dropped, by reason.", ("topic", "reason"), dropped)
    asking = [((topic.name, stage), list(topic.asking.get(stage, {}).values())) for topic in topics for stage in _stages(topic)]
    labels = ("topic", "stage")
    members = [(key, len(ages)) for key, ages in asking]
    yield _labelled(GaugeMetricFamily, "stage_waiting_members", "Members that ask for work in vain.", labels, members)
    longest = [(key, max(ages)) for key, ages in asking if ages]
    yield _labelled(GaugeMetricFamily, "stage_longest_wait_seconds", "Since when the first of them does.", labels, longest)


def _dropped(topic: TopicStatus) -> dict[str, float]:
    return {state.removeprefix(DROPPED): count for state, count in topic.ledger.items() if state.startswith(DROPPED)}


def _stages(topic: TopicStatus) -> list[str]:
    """Consumers, and the others that ask."""
    return list(dict.fromkeys((*(consumer.name for consumer in topic.consumers), *topic.asking)))


STAGES: tuple[Measure[ConsumerStatus], ...] = (
    Measure(GaugeMetricFamily, "stage_ready_rows", "Rows that wait for the stage.", lambda stage: stage.ready_rows),
    Measure(GaugeMetricFamily, "stage_leased_rows", "Rows that the stage works on.", lambda stage: stage.leased_rows),
    Measure(CounterMetricFamily, "stage_done_rows", "Rows that the stage has done.", lambda stage: stage.done_rows),
    Measure(GaugeMetricFamily, "stage_leases", "Leases that are neither answered nor run out.", lambda stage: stage.leases),
    Measure(GaugeMetricFamily, "stage_oldest_lease_seconds", "Age of the oldest of them.", lambda stage: stage.oldest_lease_s),
    Measure(CounterMetricFamily, "stage_expired_leases", "Leases that ran out; their rows went to others.", lambda stage: stage.expired_leases),
    Measure(CounterMetricFamily, "stage_sampler_fallbacks", "Takes in which its sampler was not followed.", lambda stage: stage.fallbacks),
    Measure(CounterMetricFamily, "stage_replayed_groups", "Groups that came again with a committed batch.", lambda stage: _replay(stage, "replayed")),
    Measure(GaugeMetricFamily, "stage_replay_kept_groups", "Groups kept to come again.", lambda stage: _replay(stage, "kept")),
    Measure(GaugeMetricFamily, "stage_replay_kept_bytes", "Bytes that they take, as stored.", lambda stage: _replay(stage, "kept_bytes")),
)


def _replay(stage: ConsumerStatus, name: str) -> int | None:
    return None if stage.replay is None else getattr(stage.replay, name)


# ------------------------------------------------------------ keyed partitions


def _partitions(partitions: list[PartitionStatus], words: Words) -> Iterator[Metric]:
    label = ("partition",)
    keys = _by(words.partitions.sums({partition.name: partition.keys for partition in partitions}))
    yield _labelled(GaugeMetricFamily, "partition_keys", "Keys of a keyed partition.", label, keys)
    nbytes = _by(words.partitions.sums({partition.name: partition.nbytes for partition in partitions}))
    yield _labelled(GaugeMetricFamily, "partition_bytes", "Bytes of its cells.", label, nbytes)


# ------------------------------------------------------------ shards

SHARDS: tuple[Measure[ShardStored], ...] = (
    Measure(GaugeMetricFamily, "shard_used_bytes", "Stored, as asked for.", lambda shard: shard.used_bytes),
    Measure(GaugeMetricFamily, "shard_capacity_bytes", "Most bytes that are stored.", lambda shard: shard.capacity_bytes),
    Measure(GaugeMetricFamily, "shard_held_bytes", "Freed, but still read by somebody.", lambda shard: shard.held_bytes),
    Measure(GaugeMetricFamily, "shard_idle_bytes", "Free memory that is kept warm.", lambda shard: shard.idle_bytes),
    Measure(GaugeMetricFamily, "shard_ahead_bytes", "Room that writers reserved ahead and have not used.", lambda shard: shard.ahead_bytes),
    Measure(GaugeMetricFamily, "shard_resident_bytes", "Memory that the shard's arena takes.", lambda shard: shard.resident_bytes),
    Measure(GaugeMetricFamily, "shard_blocks", "Pieces stored, one a group and write.", lambda shard: shard.blocks),
    Measure(GaugeMetricFamily, "shard_extents", "Writes of which something is stored.", lambda shard: shard.extents),
)


def _shards(shards: list[ShardReport]) -> Iterator[Metric]:
    answered = [((str(shard.index),), float(shard.stored is not None)) for shard in shards]
    yield _labelled(GaugeMetricFamily, "shard_up", "1 where the shard answered the last question, else 0.", ("shard",), answered)
    yield from _measured(SHARDS, ("shard",), [((str(shard.index),), shard.stored) for shard in shards if shard.stored is not None])


# ------------------------------------------------------------ families


def _measured(measures: Iterable[Measure[T]], labels: tuple[str, ...], things: Sequence[tuple[tuple[str, ...], T]]) -> Iterator[Metric]:
    for measure in measures:
        yield _labelled(measure.kind, measure.name, measure.text, labels, [(key, measure.read(thing)) for key, thing in things])


def _alone(kind: Kind, name: str, text: str, value: float | None) -> Metric:
    return _labelled(kind, name, text, (), [((), value)])


def _by(values: dict[str, float] | dict[str, int]) -> Samples:
    return [((label,), value) for label, value in values.items()]


def _labelled(kind: Kind, name: str, text: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    metric = kind(f"{PREFIX}_{name}", text, labels=labels)
    for key, value in samples:
        if value is not None:
            metric.add_metric(key, value)
    return metric
