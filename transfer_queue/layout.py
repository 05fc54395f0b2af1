"""How the rows of one write lie in blocks: rows of a group side by side, one block a (group, column)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transfer_queue.codec import Packed
from transfer_queue.messages import Slice


@dataclass(frozen=True)
class Layout:
    bounds: np.ndarray  # [G + 1] int64: rows [bounds[g], bounds[g + 1]) of the sorted order are group g
    order: np.ndarray | None  # [R]: sorted position → the caller's row; None where the caller's rows are grouped already

    @staticmethod
    def of(gids: Sequence[int]) -> Layout:
        values = np.asarray(gids, dtype=np.int64)
        changes = np.flatnonzero(np.diff(values)) + 1
        if len(changes) + 1 == len(np.unique(values)):
            return Layout(np.concatenate([[0], changes, [len(values)]]), None)
        order = np.argsort(values, kind="stable")
        changes = np.flatnonzero(np.diff(values[order])) + 1
        return Layout(np.concatenate([[0], changes, [len(values)]]), order)

    @property
    def groups(self) -> int:
        return len(self.bounds) - 1

    def sort(self, column: Packed) -> Packed:
        return column if self.order is None else column.take(self.order)

    def slices(self, shard: int, first: int, column: Packed) -> list[Slice]:
        """Slices in the caller's order; `first` is the block of group 0; `column` is sorted."""
        group = np.repeat(np.arange(self.groups), np.diff(self.bounds))
        base = column.offsets[self.bounds[:-1]][group]
        table = np.stack([first + group, column.offsets[:-1] - base, column.offsets[1:] - base], axis=1)
        if self.order is not None:
            table = table[np.argsort(self.order)]
        return [Slice(shard, *row) for row in table.tolist()]
