"""One group, or one row of it, looked at: what `Store` keeps as numbers in columns, under the names that single steps, reports and tests use.

A group is all trajectories of one prompt, the unit of flow control; an open one is a permit. What it has only while it is generated is its `Attempt`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from transfer_queue.controller.tables import LEFT, NEVER
from transfer_queue.controller.timers import Due, Timer
from transfer_queue.messages import PromptPut, Record, Slice, State

if TYPE_CHECKING:
    from transfer_queue.controller.store import Store

SERVED = -1
OPEN: tuple[State, ...] = ("admitted", "generating", "complete", "leased")
STATES: tuple[State, ...] = (*OPEN, "trained", "dropped")


class FrozenAttempt(Record, frozen=True):
    """What a snapshot keeps."""

    slot: int
    holder: str
    fence: int
    held_version: int
    deadline: float
    oldest: int | None
    due: Due | None


@dataclass(slots=True, eq=False)
class Attempt:
    """One member generates the group."""

    holder: str  # "name#incarnation"
    fence: int
    held_version: int  # the holder's loaded version at hand-out, or a newer one that it had before the first token: none is older
    deadline: float  # of the generation lease
    timer: Timer | None = None  # asks at the deadline
    oldest: int | None = None  # version of the oldest token that it told of

    def freeze(self, slot: int) -> FrozenAttempt:
        due = None if self.timer is None else self.timer.freeze()
        return FrozenAttempt(slot, self.holder, self.fence, self.held_version, self.deadline, self.oldest, due)


class Row:
    """A row, by its slot."""

    __slots__ = ("_store", "slot")

    def __init__(self, store: Store, slot: int) -> None:
        self._store, self.slot = store, slot

    @property
    def index(self) -> int:
        return int(self._store.rows.index[self.slot])

    @property
    def oldest(self) -> int:
        return int(self._store.rows.oldest[self.slot])

    @property
    def newest(self) -> int:
        return int(self._store.rows.newest[self.slot])

    @property
    def missing(self) -> list[int]:
        return cast(list[int], self._store.rows.missing[self.slot].tolist())

    @property
    def columns(self) -> set[str]:
        """Names of those that are there."""
        there = self._store.rows.places[self.slot, :, 0] >= 0
        return {name for name, found in zip(self._store.schema.per_row_names, there, strict=True) if found}


class Group:
    """A group, by its slot and generation: equal to another look at the same life, and not `open` any more once the slot was freed."""

    __slots__ = ("_store", "generation", "slot")

    def __init__(self, store: Store, slot: int) -> None:
        self._store, self.slot = store, slot
        self.generation = int(store.groups.generation[slot])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group) and (self.slot, self.generation) == (other.slot, other.generation)

    def __hash__(self) -> int:
        return hash((self.slot, self.generation))

    @property
    def open(self) -> bool:
        return bool(self._store.groups.generation[self.slot] == self.generation)

    @property
    def gid(self) -> int:
        return int(self._store.groups.gid[self.slot])

    @property
    def life(self) -> int:
        return int(self._store.groups.life[self.slot])

    @property
    def state(self) -> State:
        return STATES[self._store.groups.state[self.slot]]

    @property
    def since(self) -> float:
        return float(self._store.groups.since[self.slot])

    @property
    def version(self) -> int:
        return int(self._store.groups.version[self.slot])

    @property
    def min_version(self) -> int:
        return int(self._store.groups.min_version[self.slot])

    @min_version.setter
    def min_version(self, version: int) -> None:
        self._store.groups.min_version[self.slot] = version

    @property
    def closed(self) -> bool:
        return bool(self._store.groups.closed[self.slot])

    @property
    def lapses(self) -> int:
        return int(self._store.groups.lapses[self.slot])

    @property
    def attempt_tokens(self) -> int:
        return int(self._store.groups.attempt_tokens[self.slot])

    @property
    def pending(self) -> list[int]:
        return cast(list[int], self._store.groups.pending[self.slot].tolist())

    @property
    def leased_by(self) -> set[int]:
        return set(np.flatnonzero(self._store.groups.leased[self.slot]).tolist())

    @property
    def acked_by(self) -> set[int]:
        return set(np.flatnonzero(self._store.groups.acked[self.slot]).tolist())

    # ------------------------------------------------------------ its attempt

    @property
    def attempt(self) -> Attempt | None:
        return self._store.attempts.get(self.slot)

    @property
    def holder(self) -> str | None:
        return None if self.attempt is None else self.attempt.holder

    @property
    def fence(self) -> int:
        return -1 if self.attempt is None else self.attempt.fence

    @property
    def deadline(self) -> float:
        return 0.0 if self.attempt is None else self.attempt.deadline

    @property
    def attempt_oldest(self) -> int | None:
        return None if self.attempt is None else self.attempt.oldest

    # ------------------------------------------------------------ its rows

    @property
    def row_slots(self) -> np.ndarray:
        """[rows] in row order."""
        return self._store.rows_of(np.array([self.slot]))[0]

    @property
    def rows(self) -> dict[int, Row]:
        rows = [Row(self._store, slot) for slot in self.row_slots.tolist()]
        return {row.index: row for row in rows}

    @property
    def wanted(self) -> int:
        """Rows asked for."""
        return int(self._store.groups.wanted[self.slot])

    def has_any(self, indices: set[int]) -> bool:
        """Whether one of these rows, all of them asked for, is there."""
        there, base = self._store.rows.there, int(self._store.groups.base[self.slot])
        return any(there[base + index] for index in indices)

    def missing_rows(self) -> list[int]:
        base = int(self._store.groups.base[self.slot])
        missing: list[int] = np.flatnonzero(~self._store.rows.there[base : base + self.wanted]).tolist()
        return missing

    @property
    def blocks(self) -> set[tuple[int, int]]:
        """(shard, block) of its rows' columns."""
        table = self._store.rows.places[self.row_slots].reshape(-1, 4)
        return {(shard, block) for shard, block, *_ in table.tolist() if shard >= 0}

    @property
    def prompt(self) -> PromptPut:
        """What it was made from."""
        table = self._store.groups.places[self.slot, :LEFT].tolist()
        columns = {name: Slice(*place) for name, place in zip(self._store.schema.shared_names, table, strict=True) if place[0] >= 0}
        return PromptPut(gid=self.gid, columns=columns, rows=self.wanted)

    @property
    def left(self) -> Slice | None:
        """What an attempt handed back of rows that it had begun."""
        place = self._store.groups.places[self.slot, LEFT].tolist()
        return None if place[0] < 0 else Slice(*place)

    # ------------------------------------------------------------ what follows

    @property
    def asked_version(self) -> int:
        """Of the weights that make its next token, at least."""
        return int(max(self._store.groups.min_version[self.slot], self._store.groups.left_newest[self.slot]))

    def measured_version(self) -> int:
        """Of its oldest surviving token, else what it may be generated with at least."""
        oldest = int(min(self._store.groups.oldest[self.slot], self._store.groups.left_oldest[self.slot]))
        if self.attempt_oldest is not None:
            oldest = min(oldest, self.attempt_oldest)
        return self.min_version if oldest == NEVER else oldest

    def started_version(self) -> int | None:
        """What expiry looks at: the oldest surviving token, else the weights that make its first, else None (not started)."""
        if self._store.groups.rows[self.slot] or self.attempt_oldest is not None or self.left is not None:
            return self.version
        return None if self.attempt is None else self.attempt.held_version
