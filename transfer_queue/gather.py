"""One column of a read: which bytes of which shard, and back into rows in the order asked for.

Rows of a group name the same slice of a shared column: neighbours that do are fetched once and spread here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from transfer_queue import messages as m
from transfer_queue.codec import Column, offsets_of, row_index, storage, unpack
from transfer_queue.schema import column_of
from transfer_queue.shard.messages import Ranges
from transfer_queue.wire import Frame

_NOWHERE = (-1, 0, 0, 0)


class Gather:
    """R rows of the column `name`, U of them unlike their predecessor; a slice is None where the row lacks it (ValueError unless it is optional)."""

    def __init__(self, name: str, gids: Sequence[int], slices: Sequence[m.Slice | None], spec: m.TopicSpec) -> None:
        self.name, self.column = name, column_of(spec, name)
        self.dtype = storage(self.column.dtype)
        places = [_NOWHERE if found is None else (found.shard, found.block, found.start, found.stop) for found in slices]
        table = np.array(places, dtype=np.int64).reshape(-1, 4)
        self._gids, self._table = np.asarray(gids, dtype=np.int64), table
        first = np.ones(len(table), dtype=bool)
        first[1:] = (table[1:] != table[:-1]).any(axis=1)
        self._spread = None if first.all() else np.cumsum(first) - 1  # [R] row → which of the U
        self._shard, self._block, self._start, self._stop = table[first].T  # each [U]
        self._lengths = self._stop - self._start
        self._frames: dict[int, np.ndarray] = {}
        self._check()

    def _check(self) -> None:
        missing = self._gids[self._table[:, 0] < 0].tolist()
        if missing and not self.column.optional:
            raise ValueError(f"column {self.name!r} is missing in rows of groups {missing[:8]} and is not optional: read it after its producer")
        lengths = self._lengths[self._shard >= 0]
        if self.column.kind == "scalar" and (lengths != 1).any():
            raise ValueError(f"column {self.name!r} is scalar, but a slice holds {lengths[lengths != 1][0]} values: written as another kind")

    def shards(self) -> set[int]:
        return set(self._shard[self._shard >= 0].tolist())

    def ranges(self, shard: int) -> Ranges:
        """Bytes to ask `shard` for; neighbours in a block are one range."""
        rows = np.flatnonzero(self._shard == shard)
        block, start, stop = self._block[rows], self._start[rows] * self.dtype.itemsize, self._stop[rows] * self.dtype.itemsize
        begins = np.ones(len(rows), dtype=bool)
        begins[1:] = (block[1:] != block[:-1]) | (start[1:] != stop[:-1])
        ends = np.roll(begins, -1)  # a range ends where the next one begins; the last one ends last
        return Ranges(blocks=block[begins].tolist(), starts=start[begins].tolist(), stops=stop[ends].tolist())

    def owners(self, shard: int, blocks: Sequence[int]) -> set[int]:
        """gids of the rows that lie in `blocks` of `shard`."""
        return set(self._gids[(self._table[:, 0] == shard) & np.isin(self._table[:, 1], blocks)].tolist())

    def add(self, shard: int, frame: Frame) -> None:
        """The bytes that answer `ranges(shard)`. Raises ValueError when they are not as many as asked for."""
        wanted = int(self._lengths[self._shard == shard].sum()) * self.dtype.itemsize
        if len(frame) != wanted:
            raise ValueError(f"shard {shard} sent {len(frame)} bytes of column {self.name!r}, {wanted} were asked for")
        values = np.frombuffer(frame, dtype=self.dtype)
        self._frames[shard] = values if values.flags.aligned else values.copy()

    def result(self) -> Column:
        """The column as its kind says; an absent scalar is masked, for absent is never zero."""
        values, lengths = self._values(), self._lengths
        if self._spread is not None:
            index = row_index(offsets_of(lengths)[:-1][self._spread], lengths[self._spread])
            values, lengths = values[index], lengths[self._spread]
        column = unpack(self.column.kind, self.column.dtype, values, lengths)
        absent = self._table[:, 0] < 0
        if self.column.kind != "scalar" or not absent.any():
            return column
        filled = np.zeros(len(absent), dtype=self.dtype)
        filled[~absent] = values
        return np.ma.masked_array(filled, mask=absent)

    def _values(self) -> np.ndarray:
        """The values of the U rows; a view of the frame when one shard has them all."""
        if len(self._frames) == 1:
            return next(iter(self._frames.values()))
        offsets = offsets_of(self._lengths)
        values = np.empty(offsets[-1], dtype=self.dtype)
        for shard, found in self._frames.items():
            mine = self._shard == shard
            values[row_index(offsets[:-1][mine], self._lengths[mine])] = found
        return values
