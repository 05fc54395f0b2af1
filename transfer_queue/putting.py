"""The client's side of a put of whole groups: columns to a shard, then one request to the controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transfer_queue import messages as m
from transfer_queue.transfer import Transfer


def put_groups(
    client: Transfer,
    spec: m.TopicSpec,
    columns: Mapping[str, Any],
    gids: Sequence[int] | None,
    rows_per_group: int,
    version: int | None,
    tokens: Sequence[int] | None,
    wait_s: float,
    token: int,
) -> m.OkStored:
    """See QueueClient.put. What the controller did not take is freed here."""
    shared = {column.name for column in spec.columns if column.shared}
    own = {name: column for name, column in columns.items() if name not in shared}
    groups = _count(own, rows_per_group, gids)
    if not groups:
        return m.OkStored()
    common = {name: column for name, column in columns.items() if name in shared}

    def build(places: dict[str, np.ndarray]) -> m.Put:
        return m.Put(
            topic=spec.name,
            member="",
            incarnation=0,
            token=token,
            groups=groups,
            rows_per_group=rows_per_group,
            columns={name: m.packed(table) for name, table in places.items()},
            gids=b"" if gids is None else m.packed(gids),
            tokens=b"" if tokens is None else m.packed(tokens),
            version=version,
            wait_s=wait_s,
        )

    places, reply = client.told(lambda: _write(client, spec, own, common, groups, rows_per_group), build, wait_s + client.timeout_s)
    if not reply.gids:
        client.discard_places(places.values())
    stored: m.OkStored = reply
    return stored


def _write(
    client: Transfer, spec: m.TopicSpec, own: Mapping[str, Any], common: Mapping[str, Any], groups: int, rows_per_group: int
) -> dict[str, np.ndarray]:
    places = client.write_even(groups, rows_per_group, own, spec)
    if common:
        try:
            places |= client.write_even(groups, 1, common, spec)
        except BaseException:  # whatever it is: nobody will name what was written first
            client.discard_places(places.values())
            raise
    return places


def _rows(name: str, column: Any) -> int:
    try:
        return len(column)
    except TypeError:  # no axis, or nothing that has rows
        raise TypeError(
            f"column {name!r} is {column!r:.60}, which has no rows: nothing was stored; pass an array with an axis of rows, a Jagged, or a list"
        ) from None


def _count(columns: Mapping[str, Any], rows_per_group: int, gids: Sequence[int] | None) -> int:
    """Groups."""
    rows = {name: _rows(name, column) for name, column in columns.items()}
    each = rows_per_group
    if each < 1 or len(set(rows.values())) > 1 or any(count % each for count in rows.values()):
        raise ValueError(f"columns of {rows} rows are no groups of rows_per_group={rows_per_group}: nothing was stored; give every column all rows")
    groups = next(iter(rows.values()), 0) // each
    if gids is not None and not all(-1 << 63 <= gid < 1 << 63 for gid in gids):
        raise ValueError(f"gids {list(gids[:8])}: they count from 0 to 2^47 and name one group each; nothing was stored")
    if gids is not None and len(gids) != groups:
        raise ValueError(f"{len(gids)} gids for {groups} groups of rows_per_group={rows_per_group}: nothing was stored; name each group once")
    return groups
