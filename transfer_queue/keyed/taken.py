"""Rows that were given to a take which nobody waits for any more: a task has had them, so they are kept for the next take that asks for the same."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from transfer_queue import messages as m


@dataclass
class Kept:
    """Of one partition, task and set of columns."""

    keys: list[str] = field(default_factory=list)
    numbers: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, taken: m.OkKeyedTaken) -> None:
        """In the order of their numbers, which is that of their keys."""
        numbers = np.concatenate([self.numbers, m.unpacked(taken.numbers)])
        keys = [*self.keys, *taken.keys]
        order = np.argsort(numbers)
        self.keys, self.numbers = [keys[at] for at in order.tolist()], numbers[order]

    def first(self, limit: int) -> tuple[list[str], bytes]:
        """At most so many, which go."""
        keys, numbers = self.keys[:limit], m.packed(self.numbers[:limit])
        self.keys, self.numbers = self.keys[limit:], self.numbers[limit:]
        return keys, numbers
