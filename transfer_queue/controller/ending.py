"""How groups end: trained, dropped one by one or many together, or with the run of their topic; and what becomes of a member's when it ends."""

from __future__ import annotations

import numpy as np

from transfer_queue.controller import leasing
from transfer_queue.controller.group import Group
from transfer_queue.controller.ledger import RUN_END
from transfer_queue.controller.topic import TopicState

STALE = "stale"


def drop(topic: TopicState, slots: np.ndarray, reason: str) -> None:
    """Give groups up: counted under `reason`, cancelled at their holders, replaced unless the run is over. Those that nobody generates and whose
    prompts do not go back end together."""
    attempts = topic.groups.attempts
    alone = slots.tolist() if reason == STALE and topic.window.spec.requeue else [slot for slot in slots.tolist() if slot in attempts]
    if alone:
        slots = slots[~np.isin(slots, alone)]
        for slot in alone:
            _drop(topic, Group(topic.groups, slot), reason)
    if len(slots):
        _end(topic, slots, keep_prompt=False)
        topic.ledger.move_all(slots, "dropped", topic.version, reason)
        topic.groups.free(slots)


def _drop(topic: TopicState, group: Group, reason: str) -> None:
    attempt, table, slots = group.attempt, topic.groups.groups, np.array([group.slot])
    if attempt is not None:
        topic.runtime.cancelled.append((attempt.holder, group.gid, attempt.fence))
    requeued = reason == STALE and topic.window.spec.requeue and not table.given[group.slot]
    if requeued:
        topic.drop_left(group)
        topic.prompts.requeue(group.prompt, group.life + 1)
    _end(topic, slots, keep_prompt=requeued)
    topic.ledger.move(group, "dropped", topic.version, reason, "" if attempt is None else attempt.holder)
    topic.unhold(group)
    topic.groups.free(slots)


def train(topic: TopicState, slots: np.ndarray, clock: int, member: str) -> None:
    """Every terminal consumer acknowledged the groups. `clock`: the version they were trained from."""
    for replays in topic.replays.values():
        replays.keep(slots)
    _end(topic, slots, keep_prompt=False)
    topic.ledger.move_all(slots, "trained", clock, member=member)
    topic.groups.free(slots)


def _end(topic: TopicState, slots: np.ndarray, keep_prompt: bool) -> None:
    """Nobody gets the groups any more. They are to be freed when the ledger has moved."""
    rows = topic.groups.rows_of(slots)[0]
    for number, consumer in enumerate(topic.schema.consumers):
        if consumer.unit == "group":
            topic.queues.drop_groups(slots, number)
        else:
            topic.queues.drop_rows(rows, number)
    for terminal in topic.terminals.values():
        terminal.forget(slots)
    topic.runtime.blocks.release(topic.groups.rows.places[rows])
    if not keep_prompt:
        topic.runtime.blocks.release(topic.groups.groups.places[slots])
    topic.groups.forget(slots)
    for kind in ("pull", "demand", "put"):
        topic.runtime.wake(kind, topic.name)
    topic.wake_terminals()


def finish_if_trained(topic: TopicState) -> None:
    """At the target the run of this topic is over: what is left is dropped or discarded, and everybody waiting is told."""
    if topic.over or topic.prompts.target is None or topic.ledger.trained < topic.prompts.target:
        return
    topic.over = True
    drop(topic, topic.groups.all(), RUN_END)
    topic.prompts.discard_all()
    for rounds in topic.rounds.values():
        rounds.clear()
    for replays in topic.replays.values():
        replays.clear()
    topic.runtime.emit("topic", topic=topic.name, reason="done", version=topic.version, data={"trained": topic.ledger.trained})
    for number in range(len(topic.schema.consumers)):
        topic.wake_takers(number)


def forget_owner(topic: TopicState, owner: str, cause: str) -> None:
    """A member ended: its attempts are reissued, its leases end."""
    for gid in sorted(topic.held.get(owner, ())):
        topic.lose_producer(topic.groups[gid], f"producer_{cause}")
    for lease in topic.leases.of(owner):
        leasing.release(topic, lease, f"consumer_{cause}")
    topic.leases.forget_lapsed(owner)
    topic.askers.ended(owner)
    topic.receipts.forget(owner)
