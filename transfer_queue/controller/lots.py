"""Drawing by lot, so that who comes back draws the same: a number of a lot is a hash of how many were drawn before it.

Each step costs the same, however many lie in.
"""

from __future__ import annotations

import struct

import xxhash

from transfer_queue.messages import Record

_DRAW = struct.Struct("<QQ")


class FrozenLots(Record, frozen=True):
    """What a snapshot keeps. The order within a level is part of the state: the next draw goes by it."""

    drawn: int
    levels: dict[int, list[int]]


class Lots:
    """Items lie on levels; one of the lowest level is drawn, each as likely (a hash of 64 bits modulo their number: uneven by less than 2^-39)."""

    def __init__(self, seed: int, stream: int) -> None:
        """Streams of one seed draw differently."""
        self._seed, self._stream = seed, stream
        self._drawn = 0
        self._levels: dict[int, list[int]] = {}
        self._places: dict[int, tuple[int, int]] = {}  # item → level, place in it

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, item: int) -> bool:
        return item in self._places

    def add(self, item: int, level: int) -> None:
        items = self._levels.setdefault(level, [])
        self._places[item] = level, len(items)
        items.append(item)

    def remove(self, item: int) -> None:
        level, place = self._places.pop(item)
        items = self._levels[level]
        last = items.pop()
        if last != item:
            items[place] = last
            self._places[last] = level, place
        if not items:
            del self._levels[level]

    def draw(self) -> int:
        """Taken out. There must be one."""
        items = self._levels[min(self._levels)]
        number = xxhash.xxh3_64_intdigest(_DRAW.pack(self._stream, self._drawn), self._seed)
        self._drawn += 1
        item = items[number % len(items)]
        self.remove(item)
        return item

    def clear(self) -> None:
        self._levels.clear()
        self._places.clear()

    def freeze(self) -> FrozenLots:
        return FrozenLots(self._drawn, {level: list(items) for level, items in self._levels.items()})

    def thaw(self, frozen: FrozenLots) -> None:
        """Into new ones."""
        self._drawn = frozen.drawn
        for level, items in frozen.levels.items():
            for item in items:
                self.add(item, level)
