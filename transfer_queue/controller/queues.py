"""Which rows and groups wait for which consumer: the ready sets of a topic, kept in step with its tables."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from transfer_queue.controller.group import SERVED
from transfer_queue.controller.readiness import ReadySet
from transfer_queue.controller.store import ROW_BITS, Store, keys_of, once

Items = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # keys, slots, versions of their groups, versions of their newest tokens


class Queues:
    """Consumers by number. Invariant: `queued` in the tables says what lies in a set, under the version and the newest token that the tables have."""

    def __init__(self, store: Store, ordered: bool, wake: Callable[[int], None]) -> None:
        """`ordered`: terminal consumers go by version. `wake` is called when a consumer may have something more."""
        self._store, self._wake = store, wake
        consumers = store.schema.consumers
        self._whole = [consumer.unit == "group" for consumer in consumers]
        self.sets = [
            ReadySet(by_version=consumer.sampler == "oldest_first" or (consumer.terminal and ordered), gated=consumer.needs_weights)
            for consumer in consumers
        ]
        self.rows = [0] * len(consumers)  # in all their items

    def add_rows(self, slots: np.ndarray, number: int) -> None:
        """Rows that a consumer of rows may have."""
        if len(slots):
            self._store.rows.queued[slots, number] = True
            self.sets[number].add(*self._of_rows(slots))
            self.rows[number] += len(slots)
            self._wake(number)

    def add_row(self, slot: int, number: int) -> None:
        """The same of one row."""
        rows, groups, owner = self._store.rows, self._store.groups, self._store.rows.group[slot]
        rows.queued[slot, number] = True
        key = (int(groups.gid[owner]) << ROW_BITS) | int(rows.index[slot])
        self.sets[number].add_one(key, slot, int(groups.version[owner]), int(rows.newest[slot]))
        self.rows[number] += 1
        self._wake(number)

    def add_groups(self, slots: np.ndarray, number: int) -> None:
        """Of these groups, those that a consumer of groups may have by now."""
        groups = self._store.groups
        slots = slots[groups.closed[slots] & (groups.pending[slots, number] == 0)]
        if len(slots):
            groups.queued[slots, number] = True
            self.sets[number].add(*self._of_groups(slots))
            self.rows[number] += int(groups.rows[slots].sum())
            self._wake(number)

    def closed(self, slots: np.ndarray) -> None:
        """These groups got their last rows."""
        for number, whole in enumerate(self._whole):
            if whole:
                self.add_groups(slots, number)

    def pop(self, number: int, limit: int, loaded: int | None) -> np.ndarray:
        """Up to `limit` items of a consumer that is not terminal, taken out; the slots of their rows."""
        items = self.sets[number].pop(limit, loaded)
        if self._whole[number]:
            self._store.groups.queued[items, number] = False
            items = self._store.rows_of(items)[0]
        else:
            self._store.rows.queued[items, number] = False
        self.rows[number] -= len(items)
        return items

    def serve(self, number: int, rows: np.ndarray) -> None:
        """A consumer acknowledged these rows (slots; of a consumer of groups all of a group): whoever else has them, or would get them, comes too
        late."""
        self._store.rows.missing[rows, number] = SERVED
        if self._whole[number]:
            self.drop_groups(once(self._store.rows.group[rows])[0], number)
        else:
            self.drop_rows(rows, number)

    def drop_groups(self, slots: np.ndarray, number: int) -> None:
        """A consumer of groups gets none of these any more."""
        groups = self._store.groups
        slots = slots[groups.queued[slots, number]]
        if len(slots):
            keys, _, versions, newest = self._of_groups(slots)
            self.sets[number].remove(keys, versions, newest)
            groups.queued[slots, number] = False
            self.rows[number] -= int(groups.rows[slots].sum())

    def drop_rows(self, slots: np.ndarray, number: int) -> None:
        """A consumer of rows gets none of these any more."""
        slots = slots[self._store.rows.queued[slots, number]]
        if len(slots):
            keys, _, versions, newest = self._of_rows(slots)
            self.sets[number].remove(keys, versions, newest)
            self._store.rows.queued[slots, number] = False
            self.rows[number] -= len(slots)

    def reversion(self, slots: np.ndarray, version: int) -> None:
        """The groups get this version, and their items another place in the sets that go by it."""
        store = self._store
        rows = store.rows_of(slots)[0]
        waiting: list[tuple[ReadySet, Items]] = []
        for number, ready in enumerate(self.sets):
            if ready.by_version:
                whole = self._whole[number]
                items = self._of_groups(slots[store.groups.queued[slots, number]]) if whole else self._of_rows(rows[store.rows.queued[rows, number]])
                waiting.append((ready, items))
        for ready, (keys, _, versions, newest) in waiting:
            ready.remove(keys, versions, newest)
        store.groups.version[slots] = version
        for ready, (keys, items_of, versions, newest) in waiting:
            ready.add(keys, items_of, np.full_like(versions, version), newest)

    def thaw(self) -> None:
        """After the tables, which say what lies where."""
        store = self._store
        rows, groups = store.rows.slots(), store.groups.slots()
        for number, ready in enumerate(self.sets):
            if self._whole[number]:
                waiting = groups[store.groups.queued[groups, number]]
                ready.add(*self._of_groups(waiting))
                self.rows[number] = int(store.groups.rows[waiting].sum())
            else:
                waiting = rows[store.rows.queued[rows, number]]
                ready.add(*self._of_rows(waiting))
                self.rows[number] = len(waiting)

    def _of_rows(self, slots: np.ndarray) -> Items:
        rows, groups = self._store.rows, self._store.groups
        owners = rows.group[slots]
        return keys_of(groups.gid[owners], rows.index[slots]), slots, groups.version[owners], rows.newest[slots]

    def _of_groups(self, slots: np.ndarray) -> Items:
        groups = self._store.groups
        return keys_of(groups.gid[slots], 0), slots, groups.version[slots], groups.newest[slots]
