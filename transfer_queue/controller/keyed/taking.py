"""Which rows of a partition a task has had, and which its takers may have now, in the order in which their keys were made.

Takers of one task may ask for different columns, each again and again: what is ready is kept by the columns that are asked for, what was had is one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from transfer_queue.controller.shelf import Shelf
from transfer_queue.controller.tables import Columns

MOST_SETS = 8  # sets of columns for which it is kept what is ready; for one that was asked for longer ago every row is looked at again
Names = tuple[str, ...]


class Ready(Columns):
    """Rows that a task has not had and that have the columns `names`. Slots are those of the partition."""

    def __init__(self, names: Names) -> None:
        super().__init__()
        self.names = names
        self.ready = self._column("ready", np.bool_)  # [slots]
        self._shelf = Shelf()  # those that are, by number

    def __len__(self) -> int:
        return len(self._shelf)

    def note(self, slots: np.ndarray, may: np.ndarray, numbers: np.ndarray) -> None:
        """`may` [n] bool: which of them are ready from now on. `slots` are unlike one another."""
        before = self.ready[slots]
        self._add(slots, numbers, may & ~before)
        self._remove(slots, numbers, before & ~may)

    def first(self, limit: int) -> np.ndarray:
        """Slots; they go."""
        slots = self._shelf.peek(limit)[1].copy()
        self._shelf.skip(len(slots))
        self.ready[slots] = False
        return slots

    def remove(self, slots: np.ndarray, numbers: np.ndarray) -> None:
        self._remove(slots, numbers, self.ready[slots])

    def _add(self, slots: np.ndarray, numbers: np.ndarray, which: np.ndarray) -> None:
        if which.any():
            order = np.argsort(numbers[which])
            self._shelf.add(numbers[which][order], slots[which][order])
            self.ready[slots[which]] = True

    def _remove(self, slots: np.ndarray, numbers: np.ndarray, which: np.ndarray) -> None:
        if which.any():
            self._shelf.remove(np.sort(numbers[which]))
            self.ready[slots[which]] = False


class Task(Columns):
    def __init__(self) -> None:
        super().__init__()
        self.had = self._column("had", np.bool_)  # [slots]
        self._sets: dict[Names, Ready] = {}  # the one that was asked for last at the end

    def __len__(self) -> int:
        """Rows that a taker may have now, by the columns of which most are ready."""
        return max(map(len, self._sets.values()), default=0)

    def __iter__(self) -> Iterator[Ready]:
        return iter(self._sets.values())

    @property
    def sets(self) -> list[Names]:
        return [*self._sets]

    def cover(self, slots: int) -> None:
        super().cover(slots)
        for each in self:
            each.cover(slots)

    def asked(self, names: Names) -> Ready | None:
        """What is kept for these columns; None: nothing is."""
        found = self._sets.pop(names, None)
        if found is not None:
            self._sets[names] = found
        return found

    def ready(self, names: Names) -> int:
        """Rows that have these columns, which were asked for, and that it has not had."""
        return len(self._sets[names])

    def begin(self, names: Names) -> Ready:
        """Nothing is ready before it was noted. It takes the place of the one that was asked for longest ago."""
        while len(self._sets) >= MOST_SETS:
            del self._sets[next(iter(self._sets))]
        made = self._sets[names] = Ready(names)
        made.cover(self._used)
        return made

    def take(self, names: Names, limit: int, numbers: np.ndarray) -> np.ndarray:
        """Slots of the first that are ready for these columns, which were asked for: they are had. `numbers`: of all slots."""
        slots = self._sets[names].first(limit)
        self.had[slots] = True
        for each in self:
            each.remove(slots, numbers[slots])
        return slots

    def give_back(self, slots: np.ndarray) -> None:
        """They never came to anybody; nothing of them is ready before it was noted."""
        self.had[slots] = False

    def clear(self, slots: np.ndarray, numbers: np.ndarray) -> None:
        for each in self:
            each.remove(slots, numbers)
        self.had[slots] = False  # of whatever key gets the slot next
