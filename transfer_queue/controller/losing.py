"""A shard ended, and with it the bytes that lay there: what can be made again is handed out again, what cannot is dropped. It looks at everything.

A trainer may have read what is in its batch, so that is left alone: it commits it, drops what it cannot read, or gives it back, to be looked at. What
waits for a rank nobody has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from transfer_queue.controller import ending, leasing
from transfer_queue.controller.group import SERVED, Group
from transfer_queue.controller.rounds import waits_for_its_rank
from transfer_queue.controller.schema import Schema
from transfer_queue.controller.store import once
from transfer_queue.controller.tables import LEFT, NEVER
from transfer_queue.controller.topic import TopicState
from transfer_queue.messages import NOWHERE

SHARD_LOST = "shard_lost"


@dataclass(frozen=True)
class Loss:
    """What is missing of G groups (slots) that no trainer has; R rows of them (slots), C columns that are not shared."""

    groups: np.ndarray  # [G]
    rows: np.ndarray  # [R]
    owners: np.ndarray  # [R] place in `groups`
    gone: np.ndarray  # [R, C] bool
    rows_gone: np.ndarray  # [R] bool: a column that its producer wrote
    broken: np.ndarray  # [G] bool: rows are to be made again, or what an attempt handed back of them is gone
    hopeless: np.ndarray  # [G] bool: nobody can

    def of(self, groups: np.ndarray) -> np.ndarray:
        """[R] bool: rows of these groups ([G] bool)."""
        return groups[self.owners]


def lose_shard(topic: TopicState, shard: int, before: int) -> None:
    """Blocks of `shard` with numbers below `before` are gone."""
    prompts = topic.prompts.lose(shard, before, topic.spec.rewinds)
    loss = lose(topic, topic.groups.all())
    kept = {"kept": sum(replays.lose() for replays in topic.replays.values())} if topic.replays else {}
    counts = kept | {"groups": int(loss.hopeless.sum()), "rows": int(loss.rows_gone.sum()), "columns": int(loss.gone.sum()), "prompts": prompts}
    topic.runtime.emit("topic", topic=topic.name, reason=SHARD_LOST, data={"shard": shard, **counts})
    for kind in ("pull", "demand", "put"):
        topic.runtime.wake(kind, topic.name)


def lose(topic: TopicState, slots: np.ndarray) -> Loss:
    """Give up or make again what shards that ended took of these groups, but for those that a trainer has."""
    _undeal(topic, slots)
    loss = _look(topic, slots)
    again = _prompts_again(topic, loss)
    ending.drop(topic, loss.groups[loss.hopeless], SHARD_LOST)
    topic.prompts.ask_again(again)
    touched = loss.broken.copy()
    touched[loss.owners[loss.gone.any(axis=1)]] = True
    touched &= ~loss.hopeless
    if touched.any():
        _make_again(topic, loss, touched)
    return loss


def _undeal(topic: TopicState, slots: np.ndarray) -> None:
    """Groups of a batch with a loss, whose parts all wait for their ranks, are out of it: the batch gets others."""
    store, went = topic.groups, topic.runtime.blocks.went
    slots = slots[store.groups.leased[slots].any(axis=1)]
    rows, owners = store.rows_of(slots)
    gone = np.logical_or.reduce(went(store.groups.places[slots]), axis=1)
    gone[owners[went(store.rows.places[rows]).any(axis=1)]] = True
    leases = [lease for lease in topic.leases.holding(slots[gone]) if lease.consumer in topic.terminals]
    for lease in leases:
        if not waits_for_its_rank(lease):
            gone &= ~np.isin(slots, lease.groups[lease.alive()])
    for lease in filter(waits_for_its_rank, leases):
        inside = np.isin(lease.groups, slots[gone]) & lease.alive()
        groups = once(lease.groups[inside])[0]
        lease.keep(~inside)
        leasing.give_up(topic, lease, groups, SHARD_LOST)
        topic.wake_takers(lease.consumer)


def _look(topic: TopicState, slots: np.ndarray) -> Loss:
    store, schema, blocks = topic.groups, topic.schema, topic.runtime.blocks
    slots = slots[~store.groups.leased[slots].any(axis=1)]
    rows, owners = store.rows_of(slots)
    gone = blocks.went(store.rows.places[rows])
    rows_gone = np.logical_or.reduce(gone[:, ~_outputs(schema).any(axis=0)], axis=1)
    shared = blocks.went(store.groups.places[slots])
    broken = shared[:, LEFT].copy()
    broken[owners[rows_gone]] = True
    some = broken.copy()
    some[owners[gone.any(axis=1)]] = True
    hopeless = shared[:, :LEFT].any(axis=1)
    hopeless |= broken & store.groups.given[slots]
    hopeless |= some & store.groups.acked[slots].any(axis=1)  # what one trainer has learned from already is not made anew for another
    return Loss(slots, rows, owners, gone, rows_gone, broken, hopeless)


def _prompts_again(topic: TopicState, loss: Loss) -> dict[int, int]:
    """gid → next life, of groups that are dropped for nothing but their prompts, where the source can put these a second time."""
    if not topic.spec.rewinds:
        return {}
    table, slots = topic.groups.groups, loss.groups[loss.hopeless]
    slots = slots[~table.given[slots] & ~table.acked[slots].any(axis=1)]
    return {gid: life + 1 for gid, life in zip(table.gid[slots].tolist(), table.life[slots].tolist(), strict=True)}


def _outputs(schema: Schema) -> np.ndarray:
    """[K, C] bool: which consumer writes which column."""
    return np.array([[name in consumer.outputs for name in schema.per_row_names] for consumer in schema.consumers], dtype=bool)


def _inputs(schema: Schema) -> np.ndarray:
    """[K, C] bool: which consumer reads which column."""
    return np.array([[name in consumer.inputs for name in schema.per_row_names] for consumer in schema.consumers], dtype=bool)


# ------------------------------------------------------------ again


def _make_again(topic: TopicState, loss: Loss, touched: np.ndarray) -> None:
    """Groups that stay open: their lost rows go, the lost columns of others are to be written again. `touched`: [G] bool."""
    store, groups = topic.groups, loss.groups[touched]
    topic.leases.void(groups)
    for number, consumer in enumerate(topic.schema.consumers):
        if consumer.unit == "group":
            topic.queues.drop_groups(groups, number)
        else:
            topic.queues.drop_rows(loss.rows[loss.of(touched)], number)
    undone = _undone(topic.schema, loss)
    ended = loss.of(touched) & loss.rows_gone
    kept = loss.of(touched) & ~loss.rows_gone
    _void_columns(topic, loss, kept, undone)
    topic.runtime.blocks.release(store.rows.places[loss.rows[ended]])
    store.remove_rows(loss.rows[ended])
    _count_rows(topic, groups, loss.rows[kept], loss.groups[loss.owners[kept]])
    _count_missing(topic, groups, loss.rows[kept], undone[kept])
    broken = loss.groups[touched & loss.broken]
    topic.reissues.remove(set(store.groups.gid[broken].tolist()))
    for slot in broken.tolist():
        _reopen(topic, Group(store, slot))
    _queue(topic, groups, loss.rows[kept])


def _undone(schema: Schema, loss: Loss) -> np.ndarray:
    """[R, K] bool: which consumer has to serve a row again, because what it wrote is lost, or was made of a group whose rows change."""
    outputs, inputs = _outputs(schema), _inputs(schema)
    whole = np.array([consumer.unit == "group" for consumer in schema.consumers])
    works = np.array([not consumer.terminal for consumer in schema.consumers])
    changed = loss.of(loss.broken)[:, None] & (whole & works)
    while True:  # what was made of such a column is void too, and what was made of that
        void = changed @ outputs  # [R, C]
        more = changed | ((void @ inputs.T) & works)
        more = _all_of_group(more, whole, loss)
        if (more == changed).all():
            break
        changed = more
    return _all_of_group(changed | ((loss.gone @ outputs.T) & works), whole, loss)


def _all_of_group(undone: np.ndarray, whole: np.ndarray, loss: Loss) -> np.ndarray:
    """A consumer of whole groups serves all rows of a group again, or none."""
    any_row = np.zeros((len(loss.groups), undone.shape[1]), dtype=bool)
    np.logical_or.at(any_row, loss.owners, undone)
    spread: np.ndarray = undone | (any_row[loss.owners] & whole)
    return spread


def _void_columns(topic: TopicState, loss: Loss, kept: np.ndarray, undone: np.ndarray) -> None:
    """Lost columns of rows that stay, and those that are written again with them, are not there."""
    void = (loss.gone | undone @ _outputs(topic.schema)) & kept[:, None]
    at_row, column = np.nonzero(void)
    slots, table = loss.rows[at_row], topic.groups.rows
    topic.runtime.blocks.release(table.places[slots, column])
    table.places[slots, column] = NOWHERE


def _count_rows(topic: TopicState, groups: np.ndarray, rows: np.ndarray, owners: np.ndarray) -> None:
    """Only these rows are left of the groups; `owners`: the group (slot) of each."""
    store, table = topic.groups, topic.groups.groups
    table.rows[groups], table.tokens[groups], table.oldest[groups], table.newest[groups] = 0, 0, NEVER, 0
    np.add.at(table.rows, owners, 1)
    np.minimum.at(table.oldest, owners, store.rows.oldest[rows])
    np.maximum.at(table.newest, owners, store.rows.newest[rows])
    np.add.at(table.tokens, owners, store.rows.tokens[rows])


def _count_missing(topic: TopicState, groups: np.ndarray, rows: np.ndarray, undone: np.ndarray) -> None:
    """What each consumer still waits for. `undone`: [rows, K] bool."""
    schema, table = topic.schema, topic.groups.rows
    needed = schema.missing - (table.places[rows, :, 0] >= 0) @ schema.needs
    served = (table.missing[rows] == SERVED) & ~undone
    table.missing[rows] = np.where(served, SERVED, needed)
    pending = topic.groups.groups.pending
    pending[groups] = 0
    waiting = table.missing[rows] > 0
    for number, consumer in enumerate(schema.consumers):
        if consumer.unit == "group":
            np.add.at(pending[:, number], table.group[rows], waiting[:, number])


def _reopen(topic: TopicState, group: Group) -> None:
    """Its lost rows are to be made again; whoever made them is cancelled."""
    attempt = group.attempt
    if attempt is not None:
        topic.runtime.cancelled.append((attempt.holder, group.gid, attempt.fence))
    topic.groups.groups.closed[group.slot] = False
    if topic.runtime.blocks.went(topic.groups.groups.places[group.slot, LEFT]):
        topic.drop_left(group)
    topic.lose_producer(group, SHARD_LOST)


def _queue(topic: TopicState, groups: np.ndarray, rows: np.ndarray) -> None:
    """Whoever can have something of the groups now. Nobody has a lease on them."""
    table, store = topic.groups.rows, topic.groups
    for number, consumer in enumerate(topic.schema.consumers):
        ready = rows[table.missing[rows, number] == 0]
        if consumer.unit == "row":
            topic.queues.add_rows(ready, number)
        else:
            topic.queues.add_groups(np.intersect1d(groups, np.unique(store.rows.group[ready])), number)
