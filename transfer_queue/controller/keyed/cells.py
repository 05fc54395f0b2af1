"""One column of a partition: where the cell of each slot lies, and what it is."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from transfer_queue.codec.declared import check_declared, value_bytes
from transfer_queue.controller.errors import bad
from transfer_queue.controller.tables import Columns
from transfer_queue.messages import NOWHERE, CellType, Column, packed, places, unpacked, wrong_lengths
from transfer_queue.messages import Cells as Message

NOTHING, LOST = 0, -1  # there is no cell; there was one, and its bytes went with their shard
MOST_TYPES = 4096  # of a column
MOST_AXES = 32  # of one value
FEW = 4  # cells that are looked at one by one: operations on arrays would cost more


class Cells(Columns):
    """`type`: NOTHING, LOST, or 1 + the place in `types`."""

    def __init__(self) -> None:
        super().__init__()
        self.type = self._column("type", np.int32)  # [slots]
        self.places = self._column("places", np.int64, 4)  # [slots, 4], NOWHERE where the bytes are lost
        self.types: list[CellType] = []
        self._numbers: dict[CellType, int] = {}  # by type, what stands in `type`
        self.count = 0  # slots that have a cell, or lost it
        self.nbytes_named = 0

    def room_for(self, types: tuple[CellType, ...]) -> bool:
        """Types that no cell has any more are dropped where they stand in the way."""
        if len(self.types) + len(types) <= MOST_TYPES or len({*self.types, *types}) <= MOST_TYPES:
            return True
        self._drop_unused()
        return len({*self.types, *types}) <= MOST_TYPES

    def _drop_unused(self) -> None:
        """It looks at the whole column."""
        used = np.unique(self.type[self.type > NOTHING])
        turns = np.zeros(len(self.types) + 1, dtype=np.int32)
        turns[used] = np.arange(1, len(used) + 1)
        there = self.type > NOTHING
        self.type[there] = turns[self.type[there]]
        self.types = [self.types[number - 1] for number in used.tolist()]
        self._numbers = {kind: at + 1 for at, kind in enumerate(self.types)}

    def write(self, slots: np.ndarray, table: np.ndarray, cells: Message, rows: np.ndarray) -> np.ndarray:
        """Cells `rows` of the message, places `table` [n, 4], into `slots` [n]. Returns the places of those that they replace."""
        old = self.take(slots)
        numbers = np.array([self._number(kind) for kind in cells.types], dtype=np.int32)
        self.type[slots] = numbers[0] if not cells.which else numbers[unpacked(cells.which)[rows]]
        self.places[slots] = table
        self.count += len(slots)
        self.nbytes_named += int((table[:, 3] - table[:, 2]).sum())
        return old

    def write_one(self, slot: int, place: list[int], cells: Message, row: int) -> list[int] | None:
        """`write` of one cell, in plain numbers; returns the place of the one that it replaces."""
        before = self.type.item(slot)
        old: list[int] | None = self.places[slot].tolist() if before > NOTHING else None
        if old is not None:
            self.nbytes_named -= old[3] - old[2]
        numbers = [self._number(kind) for kind in cells.types]
        self.type[slot] = numbers[unpacked(cells.which).item(row) if cells.which else 0]
        self.places[slot] = place
        self.count += before == NOTHING
        self.nbytes_named += place[3] - place[2]
        return old

    def _number(self, kind: CellType) -> int:
        number = self._numbers.get(kind)
        if number is None:
            self.types.append(kind)
            number = self._numbers[kind] = len(self.types)
        return number

    def take(self, slots: np.ndarray) -> np.ndarray:
        """No cell is there any more; returns the places of those that were, [n, 4]."""
        types = self.type[slots]
        found = self.places[slots[types > NOTHING]]
        self.count -= int(np.count_nonzero(types))
        self.nbytes_named -= int((found[:, 3] - found[:, 2]).sum())
        self.type[slots] = NOTHING
        return found

    def restore(self, slots: np.ndarray, types: list[CellType], numbers: np.ndarray, places: np.ndarray) -> None:
        """All cells of a new one: `numbers` as they stand in `type`, [R] each."""
        self.types, self._numbers = types, {kind: at + 1 for at, kind in enumerate(types)}
        self.type[slots], self.places[slots] = numbers, places
        self.count = int(np.count_nonzero(numbers))
        self.nbytes_named = int((places[:, 3] - places[:, 2]).sum())

    def lose(self, slots: np.ndarray) -> np.ndarray:
        """Their bytes are gone; returns the places that named them, [n, 4]."""
        found = self.places[slots]
        self.nbytes_named -= int((found[:, 3] - found[:, 2]).sum())
        self.type[slots], self.places[slots] = LOST, NOWHERE
        return found

    def message(self, slots: np.ndarray) -> Message:
        """Of slots that all have a cell."""
        numbers, which = self.type[slots], b""
        if len(numbers) > 1 and (numbers != numbers[0]).any():
            numbers, turns = np.unique(numbers, return_inverse=True)
            which = packed(turns.reshape(-1))
        else:
            numbers = numbers[:1]
        return Message(tuple(self.types[number - 1] for number in numbers.tolist()), packed(self.places[slots]), which)


@lru_cache(maxsize=MOST_TYPES)
def _size(kind: CellType) -> tuple[int, bool]:
    """(bytes of one value, whether a cell has exactly one). Raises ValueError for a type that nobody could read."""
    if len(kind.shape) > MOST_AXES:
        raise ValueError(f"a value has {len(kind.shape)} axes, {MOST_AXES} are the most")
    declared = Column(name="cell", dtype=kind.dtype, kind=kind.kind, producer="", shape=kind.shape)
    check_declared(declared)
    return value_bytes(declared), kind.kind == "scalar"


def check_cells(name: str, cells: Message, rows: int) -> np.ndarray:
    """[R, 4] places. Raises RequestError for a column that somebody could not read."""
    if wrong := wrong_lengths(rows, {"which": cells.which} if cells.which else {}, {name: cells.places}):
        raise bad(f"{wrong}; nothing was written")
    which = unpacked(cells.which) if cells.which else None
    if not cells.types or (which is not None and len(which) and not 0 <= which.min() <= which.max() < len(cells.types)):
        raise bad(f"column {name!r}: `which` names types that are not among its {len(cells.types)}: nothing was written; name each cell's type")
    try:
        sizes = [_size(kind) for kind in cells.types]
    except ValueError as error:
        raise bad(f"column {name!r} has cells that nobody could read: {error}; nothing was written") from None
    table = places(cells.places)
    at = (_wrong_of_few if rows <= FEW else _wrong)(table, sizes, which)
    if at is not None:
        kind = cells.types[0 if which is None else which[at]]
        raise bad(
            f"column {name!r}: the cell at {table[at].tolist()} is no place in a shard, or has no bytes for {kind.kind} of {kind.dtype} and shape "
            f"{list(kind.shape)}: nothing was written; send what `write` returned"
        )
    return table


def _wrong(table: np.ndarray, sizes: list[tuple[int, bool]], which: np.ndarray | None) -> int | None:
    """The first cell whose place is none, or has no bytes for its type."""
    found = np.array(sizes, dtype=np.int64)[np.zeros(len(table), dtype=np.int64) if which is None else which]
    counts, scalars = table[:, 3] - table[:, 2], found[:, 1] > 0
    odd = np.where(scalars, counts != found[:, 0], counts % np.maximum(found[:, 0], 1) != 0)
    wrong = (table < 0).any(axis=1) | (counts < 0) | odd
    return int(np.argmax(wrong)) if wrong.any() else None


def _wrong_of_few(table: np.ndarray, sizes: list[tuple[int, bool]], which: np.ndarray | None) -> int | None:
    """The same, one by one."""
    for at, place in enumerate(table.tolist()):
        size, scalar = sizes[0 if which is None else which[at]]
        count = place[3] - place[2]
        if min(place) < 0 or count < 0 or (count != size if scalar else count % max(size, 1)):
            return at
    return None
