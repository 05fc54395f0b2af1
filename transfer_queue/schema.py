"""Columns against the topic's schema, before a byte moves: a wrong dtype found by a reader would be a wrong number, not an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from transfer_queue import messages as m
from transfer_queue.codec import Packed, storage


def column_of(spec: m.TopicSpec, name: str) -> m.Column:
    for column in spec.columns:
        if column.name == name:
            return column
    raise ValueError(f"column {name!r} is not in topic {spec.name!r}, which has {[column.name for column in spec.columns]}: declare it there")


def check_columns(gids: Sequence[int], columns: Mapping[str, Packed], spec: m.TopicSpec | None) -> None:
    """Raises ValueError naming the column, what it is and what it has to be."""
    for name, packed in columns.items():
        if len(packed) != len(gids):
            raise ValueError(f"column {name!r} has {len(packed)} rows for {len(gids)} gids: rows and gids go together")
        if spec is not None:
            _check(column_of(spec, name), packed, spec.name)


def _check(column: m.Column, packed: Packed, topic: str) -> None:
    if packed.kind != column.kind:
        raise ValueError(
            f"column {column.name!r} of topic {topic!r} is {column.kind}, got {packed.kind}: pass an array [rows] for scalar, a Jagged or an array "
            "[rows, values] for per_token, a list of bytes for blob"
        )
    if packed.dtype not in (column.dtype, storage(column.dtype).name):
        raise ValueError(
            f"column {column.name!r} of topic {topic!r} is {column.dtype}, got {packed.dtype}: bits travel unconverted and would be read as other "
            f"numbers; convert before writing, e.g. values.astype({column.dtype!r})"
        )
