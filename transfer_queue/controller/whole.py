"""Rows of whole groups that come at once: all of one version and with the same columns, so that what they wait for is looked up once.

One row alone is stored without an operation on arrays, each of which costs as much as twenty on numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from transfer_queue.controller.schema import RowStart
from transfer_queue.controller.store import ROW_BITS, Numbers, keys_of
from transfer_queue.controller.tables import Where, where
from transfer_queue.controller.topic import TopicState
from transfer_queue.messages import NOWHERE

_NOWHERE = np.array(NOWHERE, dtype=np.int64)


class Whole(NamedTuple):
    """What all groups of a put have in common, and where their columns are: G groups, of `each` rows."""

    shared: dict[str, np.ndarray]  # places, [G, 4]
    own: dict[str, np.ndarray]  # places, [G * each, 4]
    each: int
    version: int
    owner: str
    start: RowStart


def store_whole(
    topic: TopicState, gids: np.ndarray, each: int, columns: Mapping[str, np.ndarray], tokens: np.ndarray | None, version: int, owner: str
) -> None:
    """G new groups of `each` rows are complete from now on. `columns`: places, [G * each, 4], of shared ones [G, 4]; `tokens`: [G * each]. The caller
    has checked everything."""
    shared = {name: table for name, table in columns.items() if name in topic.schema.shared}
    own = {name: table for name, table in columns.items() if name not in topic.schema.shared}
    whole = Whole(shared, own, each, version, owner, topic.schema.start_of(frozenset(own)))
    if len(gids) == 1 and each == 1:
        _store_one(topic, gids.item(0), whole, 0 if tokens is None else tokens.item(0))
    else:
        _store(topic, gids, whole, tokens)


def _store_one(topic: TopicState, gid: int, whole: Whole, tokens: int) -> None:
    store, queues, version = topic.groups, topic.queues, whole.version
    group = store.open_one(gid, 0, 1, _least(topic), _shared(topic, whole.shared, 1), topic.runtime.now())
    slot = store.groups.base.item(group)
    _fill(topic, whole, group, slot, group, 0, tokens, tokens)
    store.stored += 1
    topic.runtime.blocks.hold_row([*whole.own.values(), *whole.shared.values()])
    for terminal in topic.terminals.values():
        terminal.outside.add(version)
    topic.ledger.admit_one(group, whole.owner, "complete")
    key = gid << ROW_BITS
    for number in whole.start.ready:
        queues.enter_one(number, key, slot, version)
    for number in whole.start.whole:
        queues.enter_one(number, key, group, version)


def _store(topic: TopicState, gids: np.ndarray, whole: Whole, tokens: np.ndarray | None) -> None:
    store, count, each, version = topic.groups, len(gids), whole.each, whole.version
    places = _shared(topic, whole.shared, count)
    groups = store.open(gids, 0, each, _least(topic), places, topic.runtime.now())
    slots, index, owners = store.groups.base[groups], np.zeros(count, dtype=np.int64), groups
    if each > 1:
        index, owners = np.tile(np.arange(each), count), groups.repeat(each)
        slots = slots.repeat(each) + index
    sums = 0 if tokens is None else tokens.reshape(count, each).sum(axis=1)
    _fill(topic, whole, where(groups), where(slots), owners, index, 0 if tokens is None else tokens, sums)
    store.stored += len(slots)
    _hold(topic, places, whole.own)
    for terminal in topic.terminals.values():
        terminal.outside.add(version, count)
    topic.ledger.admit(groups, whole.owner, "complete")
    order = slice(None) if (gids[1:] > gids[:-1]).all() else np.argsort(gids)
    keys = keys_of(gids, 0)[order]
    rows = keys if each == 1 else keys.repeat(each) + index
    for number in whole.start.ready:
        topic.queues.enter(number, rows, slots.reshape(count, each)[order].ravel(), version, len(slots))
    for number in whole.start.whole:
        topic.queues.enter(number, keys, groups[order], version, len(slots))


def _least(topic: TopicState) -> int:
    """The version that a group which is admitted now may be made with at least."""
    return topic.window.min_version(topic.version, topic.ledger.open)


def _fill(topic: TopicState, whole: Whole, at: Where, rows_at: Where, owners: Numbers, index: Numbers, tokens: Numbers, sums: Numbers) -> None:
    """The columns of groups and of their rows, of which `owners` are the groups (slots) and `sums` a group's tokens."""
    groups, rows, start, each, version = topic.groups.groups, topic.groups.rows, whole.start, whole.each, whole.version
    groups.version[at] = groups.oldest[at] = groups.newest[at] = version
    groups.closed[at] = groups.given[at] = True
    groups.rows[at], groups.tokens[at], groups.queued[at] = each, sums, start.queued_whole
    groups.pending[at] = start.pending * each if each > 1 else start.pending
    rows.there[rows_at], rows.group[rows_at], rows.index[rows_at], rows.tokens[rows_at] = True, owners, index, tokens
    rows.oldest[rows_at] = rows.newest[rows_at] = version
    rows.queued[rows_at], rows.missing[rows_at] = start.queued, start.missing
    for place, name in enumerate(topic.schema.per_row_names):
        rows.places[rows_at, place] = whole.own.get(name, _NOWHERE)


def _shared(topic: TopicState, shared: Mapping[str, np.ndarray], count: int) -> np.ndarray:
    """[G, S, 4] places of the shared columns."""
    names = topic.schema.shared_names
    places = np.empty((count, len(names), 4), dtype=np.int64)
    for place, name in enumerate(names):
        places[:, place] = shared.get(name, _NOWHERE)
    return places


def _hold(topic: TopicState, shared: np.ndarray, own: Mapping[str, np.ndarray]) -> None:
    blocks = topic.runtime.blocks
    if shared.size:
        blocks.hold(shared)
    tables = list(own.values())
    if tables:
        blocks.hold(tables[0] if len(tables) == 1 else np.stack(tables, axis=1))
