"""How the rows of one write lie in memory: column after column, in a column group after group, rows side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transfer_queue.codec import Packed, offsets_of
from transfer_queue.memory.runs import copy_runs
from transfer_queue.messages import Slice
from transfer_queue.shard.extents import plan


@dataclass(frozen=True)
class Layout:
    """Which rows belong together."""

    bounds: np.ndarray  # [G + 1] int64: rows [bounds[g], bounds[g + 1]) of the sorted order are group g
    order: np.ndarray | None  # [R]: sorted position → the caller's row; None where the caller's rows are grouped already

    @staticmethod
    def of(gids: Sequence[int] | np.ndarray) -> Layout:
        values = np.asarray(gids, dtype=np.int64)
        steps = values[1:] - values[:-1]
        changes = np.flatnonzero(steps) + 1
        if (steps >= 0).all() or len(changes) + 1 == len(np.unique(values)):
            return Layout(np.concatenate([[0], changes, [len(values)]]), None)
        order = np.argsort(values, kind="stable")
        changes = np.flatnonzero(np.diff(values[order])) + 1
        return Layout(np.concatenate([[0], changes, [len(values)]]), order)

    @staticmethod
    def even(groups: int, rows: int) -> Layout:
        """Groups of so many rows each, one after the other."""
        return Layout(np.arange(0, groups * rows + 1, rows), None)

    @property
    def groups(self) -> int:
        return len(self.bounds) - 1


class Extent:
    """One write: `cuts`, `bases` and `nbytes` as the shard has them (`transfer_queue.shard.extents.plan`)."""

    def __init__(self, layout: Layout, columns: Mapping[str, Packed]) -> None:
        self.layout, self.columns = layout, dict(columns)
        self._starts = {name: column.offsets * column.values.itemsize for name, column in columns.items()}  # [R + 1] bytes, the caller's order
        self._sorted = {name: self._sort(starts) for name, starts in self._starts.items()}  # [R + 1] bytes, as they lie
        self.cuts: list[list[int]] = [starts[layout.bounds].tolist() for starts in self._sorted.values()]
        planned = plan(self.cuts)
        self.bases, self.nbytes = planned.bases, planned.nbytes

    def _sort(self, starts: np.ndarray) -> np.ndarray:
        return starts if self.layout.order is None else offsets_of(np.diff(starts)[self.layout.order])

    def blocks(self, first: int) -> list[int]:
        return list(range(first, first + self.layout.groups))

    def places(self, shard: int, first: int) -> dict[str, np.ndarray]:
        """By column, (shard, block, start, stop) a row, [R, 4] int64 in the caller's order; `first` is the block of group 0."""
        if len(self.layout.bounds) == 2 and self.layout.order is None and self.layout.bounds[1] == 1:  # one row needs no arithmetic on arrays
            return {
                name: np.array([[shard, first, base, base + marks[1]]], dtype=np.int64)
                for name, base, marks in zip(self.columns, self.bases, self.cuts, strict=True)
            }
        block = first + np.repeat(np.arange(self.layout.groups), np.diff(self.layout.bounds))
        back = slice(None) if self.layout.order is None else np.argsort(self.layout.order)
        found = {}
        for (name, starts), base in zip(self._sorted.items(), self.bases, strict=True):
            found[name] = table = np.empty((len(block), 4), dtype=np.int64)
            table[:, 0], table[:, 1], table[:, 2], table[:, 3] = shard, block[back], (base + starts[:-1])[back], (base + starts[1:])[back]
        return found

    def slices(self, shard: int, first: int) -> dict[str, list[Slice]]:
        """The same one by one."""
        return {name: [Slice(*place) for place in table.tolist()] for name, table in self.places(shard, first).items()}

    def pieces(self) -> list[tuple[int, np.ndarray]]:
        """(begin, bytes) of each column: the caller's own memory, but a copy where rows are to be sorted."""
        return [(base, self._bytes(name)) for name, base in zip(self.columns, self.bases, strict=True)]

    def fill(self, memory: np.ndarray) -> None:
        """Copy every column into `memory`, uint8 [nbytes], once."""
        for name, base in zip(self.columns, self.bases, strict=True):
            self._copy(name, memory[base : base + int(self._sorted[name][-1])])

    def _bytes(self, name: str) -> np.ndarray:
        values = self.columns[name].values.view(np.uint8)
        if self.layout.order is None:
            return values
        out = np.empty(len(values), dtype=np.uint8)
        self._copy(name, out)
        return out

    def _copy(self, name: str, out: np.ndarray) -> None:
        values, starts, order = self.columns[name].values.view(np.uint8), self._starts[name], self.layout.order
        if order is None:
            out[:] = values
        else:
            copy_runs(values, starts[:-1][order], np.diff(starts)[order], out, self._sorted[name][:-1])
