"""What callers pass, as packed rows."""

from __future__ import annotations

from typing import Any

from transfer_queue.codec.numbers import pack_numbers, pack_runs
from transfer_queue.codec.objects import pack_objects
from transfer_queue.codec.packed import Packed
from transfer_queue.codec.text import pack_blobs, pack_text
from transfer_queue.columns import Jagged
from transfer_queue.messages.schema import Column


def pack(name: str, column: Any, declared: Column | None = None) -> Packed:
    """Rows of one column in one buffer; whether they fit `declared` is for `transfer_queue.schema` to say.

    An ndarray or torch tensor: [R], [R, *shape] (scalar) or [R, T, *shape] (R runs of T); 0-d is one row. A Jagged, or a nested tensor of layout
    torch.jagged. A list with a value a row: bytes (blob), str (text), nested Python data (object). Without `declared`, arrays of two axes or more
    are runs, and a list is blob or text by what it holds.
    No copy, unless the input is strided, big-endian, on a device or a list. Raises TypeError or ValueError naming the column.
    """
    if isinstance(column, Jagged):
        return pack_runs(name, column)
    if isinstance(column, list):
        return _pack_list(name, column, declared)
    return pack_numbers(name, column, declared.kind if declared is not None else None)


def _pack_list(name: str, rows: list[Any], declared: Column | None) -> Packed:
    if declared is None:
        return pack_text(name, rows) if rows and all(isinstance(row, str) for row in rows) else pack_blobs(name, rows)
    if declared.kind == "object":
        return pack_objects(name, rows)
    return pack_text(name, rows) if declared.kind == "text" else pack_blobs(name, rows)
