"""Columns that nobody declared: what each row is, is found by looking at it, and rows of one column may differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transfer_queue import messages as m
from transfer_queue.codec import Packed, offsets_of, pack, storage
from transfer_queue.codec.objects import pack_objects
from transfer_queue.codec.text import pack_blobs, pack_text
from transfer_queue.codec.torch_bits import is_tensor

BYTES = "uint8"


class Typed:
    """One column on its way: R rows of bytes, and the type of each."""

    def __init__(self, packed: Packed, types: tuple[m.CellType, ...], which: Sequence[int] = ()) -> None:
        """`which` [R] of the types; none: all rows are the first."""
        self.packed, self.types, self.which = packed, types, which

    def cells(self, places: np.ndarray) -> m.Cells:
        return m.Cells(self.types, m.packed(places), m.packed(self.which) if self.which else b"")


def typed_columns(rows: int, columns: Mapping[str, Any]) -> dict[str, Typed]:
    """Raises ValueError or TypeError naming the column."""
    found = {name: typed(name, column) for name, column in columns.items()}
    for name, column in found.items():
        if len(column.packed) != rows:
            raise ValueError(f"column {name!r} has {len(column.packed)} rows for {rows} keys: they would land on other rows; give each key one")
    return found


def typed(name: str, column: Any) -> Typed:
    """Arrays, tensors and `Jagged` as `codec.pack` takes them without a declaration. A list has a value a row: an array or tensor without axes is a
    scalar, with axes a run of values of the shape behind the first; str is text, bytes are a blob, anything else is an object."""
    if isinstance(column, Typed):  # who knows more of its rows than their looks has packed them
        return column
    if not isinstance(column, list):
        return typed_of(pack(name, column))
    kinds = {_kind(value) for value in column}
    if len(kinds) == 1 and (kind := next(iter(kinds))) != "numbers":
        return typed_of(_packed(name, kind, column))
    return _row_by_row(name, [_packed(f"{name}, row {at}", _kind(value), [value]) for at, value in enumerate(column)])


def typed_of(packed: Packed) -> Typed:
    """Rows that are all what `packed` is."""
    return Typed(packed, (_type(packed),))


def _kind(value: Any) -> str:
    if isinstance(value, str) and type(value) is str:
        return "text"
    if isinstance(value, bytes | bytearray | memoryview):
        return "blob"
    return "numbers" if isinstance(value, np.ndarray | np.generic) or is_tensor(value) else "object"


def _packed(name: str, kind: str, rows: list[Any]) -> Packed:
    """Of rows of one kind; of numbers, of one row."""
    if kind == "text":
        return pack_text(name, rows)
    if kind == "blob":
        return pack_blobs(name, rows)
    if kind == "object":
        return pack_objects(name, rows)
    whole = is_tensor(rows[0]) or isinstance(rows[0], np.ma.MaskedArray)  # `pack` refuses a mask, which `asarray` would drop
    value = rows[0] if whole else np.asarray(rows[0])
    return pack(name, value[None])


def _row_by_row(name: str, rows: list[Packed]) -> Typed:
    kinds = [_type(row) for row in rows]
    numbers = {kind: at for at, kind in enumerate(dict.fromkeys(kinds))}
    types = tuple(numbers)
    frames = [row.values.view(np.uint8) for row in rows]
    joined = np.concatenate(frames) if frames else np.zeros(0, dtype=np.uint8)
    if len(types) == 1:
        kind = types[0]
        values = joined.view(storage(kind.dtype))
        return Typed(Packed(values, offsets_of([len(row.values) for row in rows]), kind.kind, kind.dtype, kind.shape), types)
    packed = Packed(joined, offsets_of([len(frame) for frame in frames]), "blob", BYTES)
    return Typed(packed, types, [numbers[kind] for kind in kinds])


def _type(packed: Packed) -> m.CellType:
    return m.CellType(packed.kind, packed.dtype, packed.shape)
