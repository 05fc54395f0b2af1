"""Batches of rows as arrays: one buffer a field, never one record a row.

Every buffer holds little-endian int64. A place is four of them, (shard, block, start, stop) of a `Slice`; NOWHERE: the row lacks the column.
Lengths are checked before anything else (`wrong_lengths`), what the numbers mean where it is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import overload

import numpy as np

from transfer_queue.messages.base import Record
from transfer_queue.messages.places import Slice

I64 = np.dtype("<i8")
NOWHERE = (-1, 0, 0, 0)


def packed(values: Sequence[int] | Sequence[tuple[int, ...]] | np.ndarray) -> bytes:
    """Integers as a buffer. Raises OverflowError for one that is no int64."""
    return np.asarray(values, dtype=I64).tobytes()


def unpacked(buffer: bytes) -> np.ndarray:
    """The same back: [n] int64, a read-only view."""
    return np.frombuffer(buffer, dtype=I64)


def packed_places(slices: Iterable[Slice | None]) -> bytes:
    """One place a row."""
    return packed([NOWHERE if piece is None else (piece.shard, piece.block, piece.start, piece.stop) for piece in slices])


def places(buffer: bytes) -> np.ndarray:
    """[n, 4] int64, a read-only view."""
    return unpacked(buffer).reshape(-1, 4)


def slices_of(buffer: bytes) -> list[Slice | None]:
    """The inverse of `packed_places`."""
    return [None if place[0] < 0 else Slice(*place) for place in places(buffer).tolist()]


def wrong_lengths(rows: int, fields: Mapping[str, bytes], columns: Mapping[str, bytes]) -> str:
    """What is wrong with buffers that are to hold `rows` rows; "" for nothing."""
    for name, buffer in fields.items():
        if len(buffer) != rows * 8:
            return f"{name!r} has {len(buffer)} bytes for {rows} rows of 8"
    for name, buffer in columns.items():
        if len(buffer) != rows * 32:
            slices = f"{len(buffer) // 32} slices for {rows} keys ({len(buffer)} bytes, 32 a slice)"
            return f"column {name!r} has {slices}: values would land on other rows"
    return ""


class RowRef(Record, frozen=True, array_like=True):
    """One row as a consumer gets it. `columns` follows the consumer's inputs; None where an optional one is missing."""

    gid: int
    row: int
    oldest_version: int
    newest_version: int
    columns: list[Slice | None]


class Rows(Record, frozen=True):
    """Rows that were handed out. Iterating, indexing and slicing give them one by one as `RowRef`s; where speed counts, use the buffers."""

    gids: bytes = b""  # [R]
    rows: bytes = b""  # [R] place in the group
    oldest: bytes = b""  # [R] version of the oldest token
    newest: bytes = b""  # [R] of the newest
    columns: tuple[bytes, ...] = ()  # [R, 4] each, in the order of the consumer's inputs
    names: tuple[str, ...] = ()  # of the columns; (): whoever made them knows

    @staticmethod
    def of(refs: Sequence[RowRef]) -> Rows:
        turns = range(len(refs[0].columns)) if refs else ()
        return Rows(
            packed([ref.gid for ref in refs]),
            packed([ref.row for ref in refs]),
            packed([ref.oldest_version for ref in refs]),
            packed([ref.newest_version for ref in refs]),
            tuple(packed_places(ref.columns[turn] for ref in refs) for turn in turns),
        )

    def refs(self) -> list[RowRef]:
        numbers = zip(*(unpacked(field).tolist() for field in (self.gids, self.rows, self.oldest, self.newest)), strict=True)
        columns = [slices_of(buffer) for buffer in self.columns]
        return [
            RowRef(gid, row, oldest, newest, [column[at] for column in columns]) for at, (gid, row, oldest, newest) in enumerate(numbers)
        ]

    def keys(self) -> list[tuple[int, int]]:
        """(gid, row) of each."""
        return list(zip(unpacked(self.gids).tolist(), unpacked(self.rows).tolist(), strict=True))

    def groups(self) -> int:
        """How many they are of."""
        return len(np.unique(unpacked(self.gids)))

    def picked(self, places: np.ndarray | slice) -> Rows:
        """Those rows, in that order."""
        gids, rows, oldest, newest = (packed(unpacked(field)[places]) for field in (self.gids, self.rows, self.oldest, self.newest))
        columns = tuple(packed(unpacked(buffer).reshape(-1, 4)[places]) for buffer in self.columns)
        return Rows(gids, rows, oldest, newest, columns, self.names)

    def places_of(self, names: Sequence[str]) -> dict[str, bytes]:
        """[R, 4] by name. Raises ValueError for columns that are not among these, or that nobody could tell apart."""
        wrong = [name for name in names if name not in self.names] if self.names else []
        if wrong or (not self.names and len(self) and len(names) != len(self.columns)):
            there = list(self.names) or f"{len(self.columns)} columns without names"
            raise ValueError(
                f"columns {wrong or list(names)} are not what these rows have, {there}: nothing was read; a lease carries the inputs of its "
                "consumer, so name some of those, or declare what is missing in Consumer.inputs"
            )
        if not self.names:
            return dict(zip(names, self.columns, strict=True)) if len(self) else dict.fromkeys(names, b"")
        return {name: self.columns[self.names.index(name)] for name in names}

    def joined(self, others: Sequence[Rows]) -> Rows:
        """These, then those of the others: all of one consumer."""
        parts = [part for part in (self, *others) if len(part)]
        if len(parts) < 2:
            return parts[0] if parts else self
        fields = zip(*((part.gids, part.rows, part.oldest, part.newest) for part in parts), strict=True)
        gids, rows, oldest, newest = (b"".join(field) for field in fields)
        columns = tuple(b"".join(buffers) for buffers in zip(*(part.columns for part in parts), strict=True))
        return Rows(gids, rows, oldest, newest, columns, parts[0].names)

    def __len__(self) -> int:
        return len(self.gids) // 8

    def __iter__(self) -> Iterator[RowRef]:
        return iter(self.refs())

    @overload
    def __getitem__(self, at: int) -> RowRef: ...

    @overload
    def __getitem__(self, at: slice) -> Rows: ...

    def __getitem__(self, at: int | slice) -> RowRef | Rows:
        if isinstance(at, slice):
            return self.picked(at)
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        return self.picked(slice(at % len(self), at % len(self) + 1)).refs()[0]


class RowPut(Record, frozen=True):
    """One finished trajectory row of a leased group, as a producer names it. `row` is the sample's place in its group, 0-based."""

    gid: int
    fence: int
    row: int
    columns: dict[str, Slice]
    tokens: int
    oldest_version: int
    newest_version: int


class PutBatch(Record, frozen=True):
    """Rows to put: the same as arrays."""

    gids: bytes = b""  # [R]
    fences: bytes = b""  # [R]
    rows: bytes = b""  # [R] place in the group
    tokens: bytes = b""  # [R]
    oldest: bytes = b""  # [R] version of the oldest token
    newest: bytes = b""  # [R]
    columns: dict[str, bytes] = {}  # [R, 4] each; NOWHERE where a row lacks an optional column

    @staticmethod
    def of(rows: Sequence[RowPut], columns: Mapping[str, bytes] | None = None) -> PutBatch:
        """`columns` beside those that the rows name. Raises OverflowError for a number that is no int64."""
        names = dict.fromkeys(name for row in rows for name in row.columns)
        own = {name: packed_places(row.columns.get(name) for row in rows) for name in names}
        return PutBatch(
            packed([row.gid for row in rows]),
            packed([row.fence for row in rows]),
            packed([row.row for row in rows]),
            packed([row.tokens for row in rows]),
            packed([row.oldest_version for row in rows]),
            packed([row.newest_version for row in rows]),
            {**own, **(columns or {})},
        )

    def __len__(self) -> int:
        return len(self.gids) // 8

    def puts(self) -> list[RowPut]:
        """One by one."""
        numbers = zip(*(unpacked(field).tolist() for field in self.fields().values()), strict=True)
        columns = {name: slices_of(buffer) for name, buffer in self.columns.items()}
        return [
            RowPut(gid, fence, row, {name: piece for name, found in columns.items() if (piece := found[at]) is not None}, tokens, oldest, newest)
            for at, (gid, fence, row, tokens, oldest, newest) in enumerate(numbers)
        ]

    def fields(self) -> dict[str, bytes]:
        return {name: getattr(self, name) for name in ("gids", "fences", "rows", "tokens", "oldest", "newest")}
