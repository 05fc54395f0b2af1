"""Which rows of a partition a task has had, which it may have now, in the order in which their keys were made."""

from __future__ import annotations

import numpy as np

from transfer_queue.controller.shelf import Shelf
from transfer_queue.controller.tables import Columns

WAITS, READY, HAD = 0, 1, 2  # for a column; to be taken; taken


class Task(Columns):
    """`state` is that of each slot of its partition."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names  # columns that it asks for
        self.state = self._column("state", np.int8)  # [slots]
        self._ready = Shelf()  # by number

    def __len__(self) -> int:
        """Rows that are ready."""
        return len(self._ready)

    def ask_for(self, names: tuple[str, ...]) -> None:
        """Other columns: nothing is ready before it was noted."""
        self.names, self._ready = names, Shelf()
        self.state[: self._used][self.state[: self._used] == READY] = WAITS

    def note(self, slots: np.ndarray, there: np.ndarray, numbers: np.ndarray) -> None:
        """`there` [n] bool: which have all its columns now. `slots` are unlike one another."""
        states = self.state[slots]
        self._add(slots, numbers, there & (states == WAITS))
        self._remove(slots, numbers, ~there & (states == READY))

    def take(self, limit: int) -> np.ndarray:
        """Slots of the first that are ready: they are had."""
        slots = self._ready.peek(limit)[1].copy()
        self._ready.skip(len(slots))
        self.state[slots] = HAD
        return slots

    def give_back(self, slots: np.ndarray) -> None:
        """They never came to anybody; nothing of them is ready before it was noted."""
        self.state[slots[self.state[slots] == HAD]] = WAITS

    def clear(self, slots: np.ndarray, numbers: np.ndarray) -> None:
        self._remove(slots, numbers, self.state[slots] == READY)
        self.state[slots] = WAITS  # of whatever key gets the slot next

    def _add(self, slots: np.ndarray, numbers: np.ndarray, which: np.ndarray) -> None:
        if which.any():
            order = np.argsort(numbers[which])
            self._ready.add(numbers[which][order], slots[which][order])
            self.state[slots[which]] = READY

    def _remove(self, slots: np.ndarray, numbers: np.ndarray, which: np.ndarray) -> None:
        if which.any():
            self._ready.remove(np.sort(numbers[which]))
            self.state[slots[which]] = WAITS
