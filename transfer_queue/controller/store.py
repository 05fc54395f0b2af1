"""The open groups of a topic and their rows: two tables, the index by gid, and the order of admission."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from transfer_queue.controller.group import STATES, Attempt, Group
from transfer_queue.controller.paged import FEW, Paged
from transfer_queue.controller.schema import Schema
from transfer_queue.controller.shelf import Shelf
from transfer_queue.controller.tables import LEFT, NEVER, NONE, FrozenRows, FrozenTable, GroupTable, RowTable, Where, spread, where
from transfer_queue.messages import NOWHERE, Record

ROW_BITS = 16  # of a key: a group has at most MOST_ROWS rows
Numbers = np.ndarray | int  # of several groups, or of one
MOST_GIDS = 1 << (63 - ROW_BITS)  # so that (gid, row) is one int64


def keys_of(gids: np.ndarray, rows: np.ndarray | int) -> np.ndarray:
    """(gid, row) as one number, in the same order."""
    return (gids << ROW_BITS) | rows


def gids_of(keys: np.ndarray) -> np.ndarray:
    return keys >> ROW_BITS


def rows_of(keys: np.ndarray) -> np.ndarray:
    return keys & (1 << ROW_BITS) - 1


def once(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(each once, how often). Rows that come together are mostly of one group, or of adjacent ones."""
    if not len(values) or (values == values[0]).all():
        return values[:1], np.array([len(values)] if len(values) else [], dtype=np.int64)
    return np.unique(values, return_counts=True)


class FrozenStore(Record, frozen=True):
    """What a snapshot keeps; attempts are the topic's."""

    rows: FrozenRows
    groups: FrozenTable
    admitted: int


class Store:
    """Also a mapping of gids to open groups, in order of admission."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.rows = RowTable(len(schema.consumers), len(schema.per_row_names))
        self.groups = GroupTable(len(schema.consumers), len(schema.shared_names))
        self.attempts: dict[int, Attempt] = {}  # by the group's slot
        self.stored = 0  # rows
        self._slots = Paged(NONE)  # gid → slot
        self._order = Shelf()  # by admission
        self._admitted = 0

    # ------------------------------------------------------------ groups

    def open(self, gids: np.ndarray, life: int, wanted: int, min_version: int, places: np.ndarray, since: float) -> np.ndarray:
        """New groups without rows, admitted; returns their slots. `places`: [G, S, 4]."""
        table, count = self.groups, len(gids)
        slots = table.take(count)
        order = np.arange(self._admitted, self._admitted + count)
        self._begin(where(slots), gids, life, wanted, min_version, places, since, self.rows.take(count, wanted), order)
        self._admitted += count
        self._order.add(order, slots)
        self._slots.set(gids, slots)
        return slots

    def open_one(self, gid: int, life: int, wanted: int, min_version: int, places: np.ndarray, since: float) -> int:
        """The same of one; `places`: [S, 4]."""
        slot = self.groups.take_one()
        self._begin(slot, gid, life, wanted, min_version, places, since, self.rows.take_one(wanted), self._admitted)
        self._order.add_one(self._admitted, slot)
        self._admitted += 1
        self._slots.put(gid, slot)
        return slot

    def _begin(
        self,
        at: Where,
        gid: Numbers,
        life: int,
        wanted: int,
        min_version: int,
        places: np.ndarray,
        since: float,
        base: Numbers,
        order: Numbers,
    ) -> None:
        table = self.groups
        table.state[at] = table.rows[at] = table.newest[at] = table.tokens[at] = table.attempt_tokens[at] = table.lapses[at] = 0
        table.closed[at] = table.given[at] = table.queued[at] = table.leased[at] = table.acked[at] = table.pending[at] = 0
        table.gid[at], table.life[at], table.since[at], table.wanted[at] = gid, life, since, wanted
        table.version[at] = table.min_version[at] = min_version
        table.base[at], table.oldest[at], table.order[at] = base, NEVER, order
        table.left_oldest[at], table.left_newest[at], table.left_epoch[at] = NEVER, 0, 0
        table.places[at, LEFT] = NOWHERE
        if places.size:
            table.places[at, :LEFT] = places

    def forget(self, slots: np.ndarray) -> None:
        """The groups ended: nobody finds them any more. Their columns can still be read until `free`."""
        if len(slots) == 1:
            self._slots.put(self.groups.gid.item(slots.item(0)), NONE)
        else:
            self._slots.set(self.groups.gid[slots], np.full(len(slots), NONE))
        self._order.remove(np.sort(self.groups.order[slots]))

    def free(self, slots: np.ndarray) -> None:
        table = self.groups
        self.stored -= int(table.rows[slots].sum())
        self.rows.give_back(table.base[slots], table.wanted[slots])
        table.give_back(slots)

    def slots_of(self, gids: np.ndarray) -> np.ndarray:
        """[n] slots, NONE for what is not open."""
        return self._slots.get(gids)

    def open_of(self, gids: Collection[int]) -> np.ndarray:
        """Slots of those that are open, in this order; none of a number that is no gid."""
        if len(gids) <= FEW:
            slots = [slot for gid in gids if (slot := self._slots.find(gid)) != NONE]
            return np.array(slots, dtype=np.int64)
        found = self._slots.get(np.array([gid for gid in gids if gid < MOST_GIDS], dtype=np.int64))
        return found[found != NONE]

    def get(self, gid: int) -> Group | None:
        slot = self._slots.find(gid)
        return None if slot == NONE else Group(self, slot)

    def __getitem__(self, gid: int) -> Group:
        group = self.get(gid)
        if group is None:
            raise KeyError(gid)
        return group

    def __len__(self) -> int:
        return len(self.groups)

    def first(self) -> Group | None:
        """Open longest."""
        return Group(self, self._order.head()[1]) if len(self._order) else None

    def values(self) -> Iterator[Group]:
        return (Group(self, slot) for slot in self.all().tolist())

    def items(self) -> Iterator[tuple[int, Group]]:
        return ((group.gid, group) for group in self.values())

    def all(self) -> np.ndarray:
        """Slots of all groups in order of admission. It looks at everything."""
        return self._order.peek(len(self._order))[1]

    def started_versions(self, slots: np.ndarray) -> np.ndarray:
        """`Group.started_version` of many; NEVER for those that are not started."""
        there = self.groups.rows[slots] > 0
        if there.all():
            return self.groups.version[slots]
        started = np.where(there, self.groups.version[slots], NEVER)
        for place in np.flatnonzero(started == NEVER).tolist():
            version = Group(self, int(slots[place])).started_version()
            started[place] = NEVER if version is None else version
        return started

    def states(self, slots: np.ndarray) -> list[str]:
        return [STATES[state] for state in self.groups.state[slots].tolist()]

    def freeze(self) -> FrozenStore:
        return FrozenStore(self.rows.freeze(), self.groups.freeze(), self._admitted)

    def thaw(self, frozen: FrozenStore) -> None:
        """Into a new store."""
        self.rows.thaw(frozen.rows)
        self.groups.thaw(frozen.groups)
        self.stored = int(np.count_nonzero(self.rows.there))
        self._admitted = frozen.admitted
        slots = self.groups.slots()
        if len(slots):
            slots = slots[np.argsort(self.groups.order[slots])]
            self._order.add(self.groups.order[slots], slots)
            self._slots.set(self.groups.gid[slots], slots)

    # ------------------------------------------------------------ rows

    def rows_of(self, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(rows, for each the place of its group in `groups`): groups as given, rows of a group in row order."""
        table = self.groups
        wanted = table.wanted[groups]
        slots, owners = spread(table.base[groups], wanted)
        if (table.rows[groups] == wanted).all():
            return slots, owners
        there = self.rows.there[slots]
        return slots[there], owners[there]

    def remove_rows(self, rows: np.ndarray) -> None:
        """They are not there any more; what their groups count of them is the caller's. Their slots stay their groups'."""
        self.rows.there[rows] = False
        self.stored -= len(rows)
