"""Cutting a batch of rows into pieces: contiguous parts, and whole groups."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from asyncflow.contracts.batch import StageBatch
from transfer_queue.columns import Jagged

Column = np.ndarray | Jagged | list[bytes]


def part(batch: StageBatch, start: int, stop: int, names: Sequence[str] | None = None) -> StageBatch:
    """Rows [start, stop) as views, with the columns in `names` (None: all)."""
    rows = slice(start, stop)
    columns = {name: _part(batch.columns[name], start, stop) for name in (batch.columns if names is None else names)}
    return StageBatch(batch.gids[rows], batch.rows[rows], batch.oldest_versions[rows], batch.newest_versions[rows], columns)


def by_group(batch: StageBatch, names: Sequence[str] | None = None) -> Iterator[StageBatch]:
    """The groups of a batch, one after the other, as views. Rows of a group are adjacent, as in every lease."""
    changes = (np.flatnonzero(batch.gids[1:] != batch.gids[:-1]) + 1).tolist()
    bounds = [0, *changes, len(batch)] if len(batch) else []
    for start, stop in itertools.pairwise(bounds):
        yield part(batch, start, stop, names)


def joined(runs: Sequence[Jagged]) -> Jagged:
    """The runs of several columns, one after the other (one copy)."""
    lengths = np.concatenate([run.lengths for run in runs])
    return Jagged(np.concatenate([run.values for run in runs]), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


def _part(column: Column, start: int, stop: int) -> Column:
    if not isinstance(column, Jagged):
        return column[start:stop]
    offsets = column.offsets[start : stop + 1]
    return Jagged(column.values[offsets[0] : offsets[-1]], offsets - offsets[0])
