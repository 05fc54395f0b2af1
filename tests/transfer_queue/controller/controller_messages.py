"""Messages of rows from rows one by one, as tests name them: the one place that knows how a batch travels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from transfer_queue import messages as m


def put_rows(rows: Sequence[m.RowPut], **fields: Any) -> m.PutRows:
    """Numbers beyond int64, which no buffer can hold, are the negative ones that have the same bits."""
    return m.PutRows(rows=m.PutBatch.of([_wrapped(row) for row in rows]), **fields)


def write_back(columns: dict[str, list[m.Slice]], keys: Sequence[tuple[int, int]], **fields: Any) -> m.WriteBack:
    packed = {name: m.packed_places(map(_wrapped, pieces)) for name, pieces in columns.items()}
    return m.WriteBack(gids=m.packed([gid for gid, _ in keys]), rows=m.packed([row for _, row in keys]), columns=packed, **fields)


def put(groups: int, columns: dict[str, list[m.Slice]], token: int = 0, each: int = 1, gids: Sequence[int] = (), **fields: Any) -> m.Put:
    packed = {name: m.packed_places(map(_wrapped, pieces)) for name, pieces in columns.items()}
    return m.Put(token=token, groups=groups, rows_per_group=each, columns=packed, gids=m.packed(gids), **fields)


def blocks(columns: dict[str, list[m.Slice]]) -> list[int]:
    """Blocks that are named, once each, in ascending order."""
    return sorted({piece.block for pieces in columns.values() for piece in pieces})


def _wrapped(record: Any) -> Any:
    """The record with every integer as an int64."""
    changes: dict[str, Any] = {}
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if isinstance(value, int):
            changes[name] = (value + 2**63) % 2**64 - 2**63
        elif isinstance(value, dict):
            changes[name] = {key: _wrapped(piece) for key, piece in value.items()}
    return msgspec.structs.replace(record, **changes)
