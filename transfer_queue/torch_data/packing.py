"""From leases to batches. Both ways keep the order, and split neither a row nor, where a consumer works on groups, a group."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from transfer_queue import messages as m

Rows: TypeAlias = m.Rows | list[m.RowRef]


class Unit(msgspec.Struct, frozen=True):
    """Rows of one lease that go into one batch."""

    lease: int
    rows: Rows
    last: bool  # of its lease
    tokens: int = 0


class Packing(Protocol):
    def add(self, lease: int, rows: Rows) -> None: ...

    def next(self, rest: bool) -> list[Unit]:
        """The next batch; empty when there is none, or when more rows would still fit into it and not even the `rest` is wanted."""
        ...

    @property
    def waiting(self) -> bool:
        """Whether rows wait for more."""
        ...


class ByLease:
    """One lease, one batch."""

    waiting = False

    def __init__(self) -> None:
        self._units: list[Unit] = []

    def add(self, lease: int, rows: Rows) -> None:
        self._units.append(Unit(lease, rows, True))

    def next(self, rest: bool) -> list[Unit]:
        units, self._units = self._units, []
        return units


class ByTokens:
    """As many rows (or groups) as have `most` tokens together, at least one; what is left of a lease goes with the rows of the next."""

    def __init__(self, most: int, tokens: Callable[[m.RowRef], int], groups: bool) -> None:
        self._most, self._tokens, self._groups = most, tokens, groups
        self._units: deque[Unit] = deque()

    @property
    def waiting(self) -> bool:
        return bool(self._units)

    def add(self, lease: int, rows: Rows) -> None:
        refs = list(rows)
        parts = [list(part) for _, part in itertools.groupby(refs, key=lambda ref: ref.gid)] if self._groups else [[ref] for ref in refs]
        for number, part in enumerate(parts, start=1):
            self._units.append(Unit(lease, part, number == len(parts), sum(map(self._tokens, part))))

    def next(self, rest: bool) -> list[Unit]:
        fitting = tokens = 0
        for unit in self._units:
            if fitting and tokens + unit.tokens > self._most:
                break
            fitting, tokens = fitting + 1, tokens + unit.tokens
        else:
            if not rest and tokens < self._most:
                return []
        return [self._units.popleft() for _ in range(fitting)]
