"""A lease from its hand-out to its end: what its owner gets, its deadline, and what becomes of rows that come back undone."""

from __future__ import annotations

from functools import partial

import numpy as np

from transfer_queue.controller.leases import Lease
from transfer_queue.controller.rounds import waits_for_its_rank
from transfer_queue.controller.store import gids_of, once
from transfer_queue.controller.timers import Due
from transfer_queue.controller.topic import TopicState
from transfer_queue.messages import Rows, packed


def rows_of_lease(topic: TopicState, lease: Lease) -> Rows:
    """Rows of a group adjacent, in row order."""
    schema, store = topic.schema, topic.groups
    inputs = schema.consumers[lease.consumer].inputs
    columns = [
        store.groups.places[lease.groups, schema.place_of[name]] if name in schema.shared else store.rows.places[lease.rows, schema.place_of[name]]
        for name in inputs
    ]
    gids, indices = lease.named = packed(gids_of(lease.keys)), packed(store.rows.index[lease.rows])
    return Rows(gids, indices, packed(store.rows.oldest[lease.rows]), packed(lease.newest), tuple(map(packed, columns)), inputs)


MOST_HELD_S = 600.0
"""A lease that is renewed again and again ends so long after its hand-out: its owner hangs, whatever it says."""


def arm(topic: TopicState, lease: Lease) -> None:
    """It ends by time, as all leases do but those of terminal consumers."""
    lease.deadline = topic.runtime.now() + topic.lease_s
    watch(topic, lease, topic.runtime.timers.due(lease.deadline))


def watch(topic: TopicState, lease: Lease, due: Due) -> None:
    lease.timer = topic.timer(partial(_ask_consumer, topic, lease), due)


def hold(topic: TopicState, lease: Lease, within_s: float) -> None:
    """Its owner, and so what it took later, stands still for at most `within_s` seconds from now; 0: it goes on, and each has its whole time."""
    now = topic.runtime.now()
    for held in topic.leases.later(lease):
        if held.timer is not None:
            topic.runtime.timers.cancel(held.timer)
            held.deadline = min(now + within_s + topic.lease_s, max(held.since + MOST_HELD_S, held.deadline))
            watch(topic, held, topic.runtime.timers.due(held.deadline))


def _ask_consumer(topic: TopicState, lease: Lease) -> float | None:
    """At the deadline."""
    if topic.runtime.now() < lease.deadline:
        return lease.deadline
    _lapse(topic, lease)
    return None


def _lapse(topic: TopicState, lease: Lease) -> None:
    """A lease that ran out: its rows are ready again. Its owner may only be slow, so what it still writes first is taken in."""
    topic.runtime.emit(
        "topic",
        topic=topic.name,
        reason="lease_expired",
        member=lease.owner,
        data={"consumer": topic.schema.consumers[lease.consumer].name, "rows": lease.count()},
    )
    topic.expired[lease.consumer] += 1
    lease.timer = None
    release(topic, lease, "lease_expired")
    topic.leases.keep_lapsed(lease)


def end(topic: TopicState, lease: Lease) -> None:
    """Everything of it is done."""
    _end_lease(topic, lease)
    if lease.consumer in topic.rounds:
        topic.rounds[lease.consumer].done(lease)


def _end_lease(topic: TopicState, lease: Lease) -> None:
    if lease.timer is not None:
        topic.runtime.timers.cancel(lease.timer)
    topic.leases.remove(lease)


def release(topic: TopicState, lease: Lease, reason: str) -> None:
    """A lease ends undone: what is still open of it is ready again; the part of a round for its rank, everything else for all."""
    rounds, replays = topic.rounds.get(lease.consumer), topic.replays.get(lease.consumer)
    _end_lease(topic, lease)
    if replays is not None:
        replays.give_back(lease.id)
    if rounds is None or not rounds.take_back(lease):
        _ready_again(topic, lease, reason)
    if lease.consumer in topic.terminals and topic.runtime.blocks.lost:
        topic.on_return(once(lease.groups[lease.alive()])[0])
    topic.wake_takers(lease.consumer)


def _ready_again(topic: TopicState, lease: Lease, reason: str) -> None:
    if lease.consumer in topic.terminals:
        give_up(topic, lease, once(lease.groups[lease.alive()])[0], reason)
    elif topic.schema.consumers[lease.consumer].unit == "group":
        topic.queues.add_groups(once(lease.groups[lease.due()])[0], lease.consumer)
    else:
        topic.queues.add_rows(lease.rows[lease.due()], lease.consumer)


def give_up(topic: TopicState, lease: Lease, slots: np.ndarray, reason: str) -> None:
    """These groups, of a lease of a terminal consumer, are out of its batch and ready again."""
    table, terminal = topic.groups.groups, topic.terminals[lease.consumer]
    terminal.put_back(slots)
    topic.queues.rows[terminal.number] += int(table.rows[slots].sum())
    member = "" if waits_for_its_rank(lease) else lease.owner
    topic.ledger.move_all(slots[~table.leased[slots].any(axis=1)], "complete", topic.version, reason, member)


def take_back(topic: TopicState, lease_id: int) -> None:
    """A hand-out that nobody received: its rows are ready again."""
    lease = topic.leases.get(lease_id)
    if lease is not None:
        release(topic, lease, "undelivered")
