"""Columns against the topic's schema, before a byte moves: a wrong dtype found by a reader would be a wrong number, not an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transfer_queue import messages as m
from transfer_queue.codec import Packed, pack, storage

_PASS = {
    "scalar": "an array or tensor [rows, *shape]",
    "per_token": "a Jagged, a nested tensor of layout torch.jagged, or an array or tensor [rows, values, *shape]",
    "blob": "a list of bytes",
    "text": "a list of str",
    "object": "a list with a value a row",
}


def column_of(spec: m.TopicSpec, name: str) -> m.Column:
    for column in spec.columns:
        if column.name == name:
            return column
    raise ValueError(f"column {name!r} is not in topic {spec.name!r}, which has {[column.name for column in spec.columns]}: declare it there")


def pack_columns(rows: int, columns: Mapping[str, Any], spec: m.TopicSpec | None) -> dict[str, Packed]:
    """Columns as `pack` takes them, so many rows, packed and checked; without `spec` only the number of rows is.

    Raises ValueError or TypeError naming the column, what it is and what it has to be.
    """
    packed = {}
    for name, column in columns.items():
        declared = column_of(spec, name) if spec is not None else None
        packed[name] = pack(name, column, declared)
        if declared is not None and spec is not None:
            _check(declared, packed[name], spec.name)
        if len(packed[name]) != rows:
            raise ValueError(f"column {name!r} has {len(packed[name])} rows for {rows} gids: rows and gids go together")
    return packed


def _check(column: m.Column, packed: Packed, topic: str) -> None:
    where = f"column {column.name!r} of topic {topic!r}"
    if packed.kind != column.kind:
        raise ValueError(f"{where} is {column.kind}, got {packed.kind}: pass {_PASS[column.kind]} for {column.kind}")
    if packed.dtype != column.dtype and packed.dtype != storage(column.dtype).name:
        raise ValueError(
            f"{where} is {column.dtype}, got {packed.dtype}: bits travel unconverted and would be read as other numbers; convert before writing, "
            f"e.g. values.astype({column.dtype!r}) or tensor.to(torch.{column.dtype})"
        )
    if packed.shape != column.shape and not (packed.kind == "per_token" and not len(packed.values)):  # runs without values have no shape to differ in
        raise ValueError(
            f"{where} holds values of shape {list(column.shape)}, got {list(packed.shape)}: they would be read in another shape; pass "
            f"{_PASS[column.kind]}, or declare shape={list(packed.shape)}"
        )
