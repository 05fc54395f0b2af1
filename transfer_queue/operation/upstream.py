"""What a stage that has nothing to do waits for, read off a topic's counts: the columns it reads, and how far those are that write them."""

from __future__ import annotations

from collections.abc import Iterator

from transfer_queue.messages import ConsumerStatus, TopicSpec, TopicStatus


def waits_for(topic: TopicStatus, consumer: ConsumerStatus) -> str:
    """ "" where rows are ready for it, or the topic is over."""
    if consumer.ready_rows or topic.over or topic.spec is None:
        return ""
    owed = dict.fromkeys(_owed(topic, topic.spec, consumer.name, {consumer.name}))
    return "; ".join(owed) or _rows(topic)


def writers(spec: TopicSpec, consumer: str) -> dict[str, list[str]]:
    """Stage → columns that `consumer` reads of it and must have; those that come with the prompt apart."""
    inputs = next(entry.inputs for entry in spec.consumers if entry.name == consumer)
    outputs = {name: entry.name for entry in spec.consumers for name in entry.outputs}
    found: dict[str, list[str]] = {}
    for column in spec.columns:
        if column.name in inputs and not column.shared and not column.optional:
            found.setdefault(outputs.get(column.name, column.producer), []).append(column.name)
    return found


def readers(spec: TopicSpec, column: str) -> list[str]:
    """Stages that read a column."""
    return [consumer.name for consumer in spec.consumers if column in consumer.inputs]


def _owed(topic: TopicStatus, spec: TopicSpec, consumer: str, seen: set[str]) -> Iterator[str]:
    """By each stage before it that has something to do; of one that has nothing, what that one waits for."""
    for stage, names in writers(spec, consumer).items():
        found = next((entry for entry in topic.consumers if entry.name == stage), None)
        state = ", ".join(_producing(topic) if found is None else _consuming(found))
        if state:
            yield f"{', '.join(names)} of {stage} ({state})"
        elif found is not None and stage not in seen:
            yield from _owed(topic, spec, stage, seen | {stage})


def _producing(topic: TopicStatus) -> Iterator[str]:
    begun, admitted = topic.ledger.get("generating", 0), topic.ledger.get("admitted", 0)
    if begun:
        yield f"{begun} groups begun"
    if admitted:
        yield f"{admitted} admitted"


def _consuming(consumer: ConsumerStatus) -> Iterator[str]:
    if consumer.ready_rows:
        yield f"{consumer.ready_rows} rows ready there"
    if consumer.leased_rows:
        yield f"{consumer.leased_rows} leased"


def _rows(topic: TopicStatus) -> str:
    """No column is owed: rows are, or the groups that they come from."""
    if state := ", ".join(_producing(topic)):
        return f"rows ({state})"
    if topic.permits == 0:
        return f"a permit ({topic.open} groups are open)"
    return "prompts" if topic.prompts_waiting == 0 else "a producer that pulls a prompt"
