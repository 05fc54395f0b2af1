"""Which rows and groups wait for which consumer: the ready sets of a topic, kept in step with its tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from transfer_queue.controller.group import SERVED
from transfer_queue.controller.picking import FrozenPicker, Picker
from transfer_queue.controller.readiness import ReadySet
from transfer_queue.controller.store import ROW_BITS, Store, keys_of, once
from transfer_queue.samplers import Candidates
from transfer_queue.samplers.choice import Choices

Items = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # keys, slots, versions of their groups, versions of their newest tokens


class Queues:
    """Consumers by number. Invariant: `queued` in the tables says what lies in a set, under the version and the newest token that the tables have."""

    def __init__(
        self, store: Store, ordered: bool, wake: Callable[[int], None], tell: Callable[[int, str, int], None], choices: Choices
    ) -> None:
        """`ordered`: terminal consumers go by version. `wake` is called when a consumer may have something more, `tell` (consumer, what was wrong,
        how often) when its sampler could not be followed; `choices` gets what samplers of somebody's own said."""
        self._store, self._wake = store, wake
        consumers = store.schema.consumers
        self._whole = [consumer.unit == "group" for consumer in consumers]
        plans = store.schema.plans
        self.sets = [
            ReadySet(
                by_version=plan.order != "in_order" or (consumer.terminal and ordered),
                gated=consumer.needs_weights,
                newest_first=plan.order == "newest_first",
            )
            for consumer, plan in zip(consumers, plans, strict=True)
        ]
        self.pickers = [
            Picker(self.sets[number], plan, partial(self._candidates, number), partial(self._remove, number), partial(tell, number), choices)
            for number, plan in enumerate(plans)
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
        rows, groups, owner = self._store.rows, self._store.groups, self._store.rows.group.item(slot)
        rows.queued[slot, number] = True
        key = (groups.gid.item(owner) << ROW_BITS) | rows.index.item(slot)
        self.sets[number].add_one(key, slot, groups.version.item(owner), rows.newest.item(slot))
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

    def enter(self, number: int, keys: np.ndarray, slots: np.ndarray, version: int, rows: int) -> None:
        """Items that the tables tell of already, all of one version, newest token included; `keys` ascend. `rows`: how many they have."""
        self.sets[number].add_alike(keys, slots, version, version)
        self.rows[number] += rows
        self._wake(number)

    def enter_one(self, number: int, key: int, slot: int, version: int) -> None:
        """The same of one item of one row."""
        self.sets[number].add_one(key, slot, version, version)
        self.rows[number] += 1
        self._wake(number)

    def closed(self, slots: np.ndarray) -> None:
        """These groups got their last rows."""
        for number, whole in enumerate(self._whole):
            if whole:
                self.add_groups(slots, number)

    def pop(self, number: int, limit: int, loaded: int | None, at_least: int = 1) -> np.ndarray:
        """Up to `limit` items (slots) of a consumer that is not terminal, taken out."""
        items = self.pickers[number].pop(limit, loaded, at_least)
        if self._whole[number]:
            self._store.groups.queued[items, number] = False
            self.rows[number] -= int(self._store.groups.rows[items].sum())
        else:
            self._store.rows.queued[items, number] = False
            self.rows[number] -= len(items)
        return items

    def rows_of(self, number: int, items: np.ndarray) -> np.ndarray:
        """Slots of the items' rows."""
        return self._store.rows_of(items)[0] if self._whole[number] else items

    def tokens_of(self, number: int, items: np.ndarray) -> np.ndarray:
        """[n] of each item."""
        return (self._store.groups if self._whole[number] else self._store.rows).tokens[items]

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

    def freeze(self) -> list[FrozenPicker]:
        """The rest is told by the tables."""
        return [picker.freeze() for picker in self.pickers]

    def thaw(self, pickers: list[FrozenPicker]) -> None:
        """After the tables, which say what lies where."""
        for picker, frozen in zip(self.pickers, pickers, strict=True):
            picker.thaw(frozen)
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

    def _candidates(self, number: int, items: np.ndarray) -> Candidates:
        """Copies all of them: who gets them may write to them."""
        rows, groups = self._store.rows, self._store.groups
        if self._whole[number]:
            table, zeros = groups, np.zeros(len(items), dtype=np.int64)
            return Candidates(
                table.gid[items], zeros, table.version[items], table.newest[items], table.tokens[items], table.rows[items], table.order[items]
            )
        owners, ones = rows.group[items], np.ones(len(items), dtype=np.int64)
        return Candidates(
            groups.gid[owners], rows.index[items], groups.version[owners], rows.newest[items], rows.tokens[items], ones, groups.order[owners]
        )

    def _remove(self, number: int, items: np.ndarray) -> None:
        keys, _, versions, newest = self._of_groups(items) if self._whole[number] else self._of_rows(items)
        self.sets[number].remove(keys, versions, newest)

    def _of_rows(self, slots: np.ndarray) -> Items:
        rows, groups = self._store.rows, self._store.groups
        owners = rows.group[slots]
        return keys_of(groups.gid[owners], rows.index[slots]), slots, groups.version[owners], rows.newest[slots]

    def _of_groups(self, slots: np.ndarray) -> Items:
        groups = self._store.groups
        return keys_of(groups.gid[slots], 0), slots, groups.version[slots], groups.newest[slots]
