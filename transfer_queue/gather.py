"""One column of a read: which bytes of which shard, and back into rows in the order asked for.

Rows that lie side by side in one place are looked at where they are; all others cost one copy. Rows of a group name the same slice of a shared
column: neighbours that do are fetched once and spread by that copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from transfer_queue import messages as m
from transfer_queue.codec import Column, offsets_of, storage, unpack
from transfer_queue.memory.buffers import Buffers
from transfer_queue.memory.runs import check_runs, copy_runs, merged
from transfer_queue.schema import column_of
from transfer_queue.shard.messages import Ranges


class Gather:
    """R rows of the column `name`, U of them unlike their predecessor; `slices`: their places, [R, 4], NOWHERE where a row lacks it, or one by one,
    then None (ValueError unless it is optional)."""

    def __init__(self, name: str, gids: Sequence[int] | np.ndarray, slices: np.ndarray | Sequence[m.Slice | None], spec: m.TopicSpec) -> None:
        self.name, self.column = name, column_of(spec, name)
        self.dtype = storage(self.column.dtype)
        table = slices if isinstance(slices, np.ndarray) else m.places(m.packed_places(slices))
        self._gids, self._shards, self._blocks = np.asarray(gids, dtype=np.int64), table[:, 0], table[:, 1]  # each [R]
        first = np.ones(len(table), dtype=bool)
        first[1:] = (table[1:] != table[:-1]).any(axis=1)
        self._spread = None if first.all() else np.cumsum(first) - 1  # [R] row → which of the U
        self._shard, self._block, self._start, self._stop = table[first].T.copy()  # each [U]; bytes in the extent of the block
        self._lengths = self._stop - self._start
        self._sources: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # shard → its bytes, and where in them its rows begin
        self._whole: np.ndarray | None = None  # all rows, one after the other
        self._check()

    def _check(self) -> None:
        missing = self._gids[self._shards < 0].tolist()
        if missing and not self.column.optional:
            raise ValueError(f"column {self.name!r} is missing in rows of groups {missing[:8]} and is not optional: read it after its producer")
        torn = (self._lengths < 0) | (self._lengths % self.dtype.itemsize != 0)
        if torn.any():
            raise ValueError(
                f"column {self.name!r} is {self.column.dtype}, {self.dtype.itemsize} bytes each, but a slice holds {self._lengths[torn][0]} bytes: "
                "it was written as another dtype; writer and reader must share one schema"
            )

    def shards(self) -> set[int]:
        return set(self._shard[self._shard >= 0].tolist())

    def blocks(self, shard: int) -> np.ndarray:
        """Numbers of the blocks of `shard` that are read, each once, ascending."""
        return np.unique(self._block[self._shard == shard])

    def ranges(self, shard: int) -> Ranges:
        """Bytes to ask `shard` for; neighbours in a block are one range."""
        rows = np.flatnonzero(self._shard == shard)
        block, start, stop = self._block[rows], self._start[rows], self._stop[rows]
        begins = np.ones(len(rows), dtype=bool)
        begins[1:] = (block[1:] != block[:-1]) | (start[1:] != stop[:-1])
        ends = np.roll(begins, -1)  # a range ends where the next one begins; the last one ends last
        return Ranges(blocks=block[begins].tolist(), starts=start[begins].tolist(), stops=stop[ends].tolist())

    def pieces(self, shard: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(block, begin in its extent, bytes) of the rows to fetch from `shard`, [n] each."""
        rows = self._shard == shard
        if rows.all():
            return self._block, self._start, self._lengths
        return self._block[rows], self._start[rows], self._lengths[rows]

    def owners(self, shard: int, blocks: Sequence[int]) -> set[int]:
        """gids of the rows that lie in `blocks` of `shard`."""
        return set(self._gids[(self._shards == shard) & np.isin(self._blocks, blocks)].tolist())

    def add(self, shard: int, frame: np.ndarray) -> None:
        """The bytes that answer `ranges(shard)`, uint8. Raises ValueError when they are not as many as asked for."""
        starts = offsets_of(self._lengths[self._shard == shard])
        if len(frame) != starts[-1]:
            raise ValueError(f"shard {shard} sent {len(frame)} bytes of column {self.name!r}, {starts[-1]} were asked for")
        if len(starts) > 1:  # another column may have all that is read here
            self._sources[shard] = frame, starts[:-1]
            if len(starts) > len(self._lengths):
                self._whole = frame

    def map(self, shard: int, memory: np.ndarray, blocks: np.ndarray, offsets: np.ndarray) -> None:
        """The rows of `shard` lie in `memory`: the extent of blocks[i] (ascending) begins at offsets[i]."""
        rows = self._shard == shard
        if rows.any():
            self._sources[shard] = memory, offsets[np.searchsorted(blocks, self._block[rows])] + self._start[rows]

    def result(self, buffers: Buffers, writable: bool = False) -> Column:
        """The column as its kind says; an absent scalar is masked, for absent is never zero."""
        lengths = self._lengths if self._spread is None else self._lengths[self._spread]
        return unpack(self.column, self._values(buffers, writable), lengths // self.dtype.itemsize, self._shards < 0)

    def _values(self, buffers: Buffers, writable: bool) -> np.ndarray:
        """The values of the rows that are there."""
        if self._spread is None and len(self._sources) == 1:
            found = self._in_place()
            if found is not None and (found.flags.writeable or not writable):
                return found
        return self._copied(buffers)

    def _in_place(self) -> np.ndarray | None:
        """A view, where all rows lie side by side in the order asked for."""
        if self._whole is not None:
            return self._as_values(self._whole)
        ((shard, (source, starts)),) = self._sources.items()
        lengths = self._lengths[self._shard == shard]
        begins, lengths, _ = merged(starts, lengths, offsets_of(lengths)[:-1])
        if len(begins) > 1:
            return None
        if not len(begins):
            return np.empty(0, dtype=self.dtype)
        check_runs(source, begins, lengths)
        return self._as_values(source[int(begins[0]) : int(begins[0] + lengths[0])])

    def _as_values(self, found: np.ndarray) -> np.ndarray | None:
        """None where it is not aligned: a frame begins anywhere."""
        return found.view(self.dtype) if found.__array_interface__["data"][0] % self.dtype.alignment == 0 else None

    def _copied(self, buffers: Buffers) -> np.ndarray:
        spread = np.arange(len(self._lengths)) if self._spread is None else self._spread
        lengths, shards = self._lengths[spread], self._shard[spread]
        targets = offsets_of(lengths)
        out = buffers.take(int(targets[-1]))
        for shard, (source, starts) in self._sources.items():
            begins = np.zeros(len(self._lengths), dtype=np.int64)
            begins[self._shard == shard] = starts
            mine = shards == shard
            copy_runs(source, begins[spread[mine]], lengths[mine], out, targets[:-1][mine])
        return out.view(self.dtype)
