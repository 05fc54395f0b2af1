"""What a reader gets of keyed rows: a column in one part where all its rows are alike, else in one part a type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from transfer_queue import messages as m
from transfer_queue.codec import Column


@dataclass(frozen=True)
class Part:
    """Rows of a column that have one type."""

    type: m.CellType
    rows: np.ndarray  # [n] int64, which of the rows that were found
    values: Column  # of n rows, as `codec.unpack` says


@dataclass(frozen=True)
class Found:
    """F rows, in the order in which they were asked for; what is not there is left out. `found[name]` is a column."""

    rows: np.ndarray  # [F] int64, places in the request, ascending
    keys: list[str]  # [F]
    numbers: np.ndarray  # [F] int64
    tags: list[dict[str, Any]]  # [F] where they were asked for; {}: there is none
    names: list[str]  # columns that all F rows have, sorted, whether they were asked for or not
    parts: Mapping[str, list[Part]]  # those that were asked for and that all F rows have

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, name: str) -> Column:
        """A column as `codec.unpack` gives it, where all rows have one type; else a list with a value a row: of a scalar an array of its shape, of a
        run an array [T, *shape], of the other kinds what they are. KeyError where some row lacks it."""
        parts = self.parts.get(name)
        if parts is None:
            raise KeyError(
                f"column {name!r} was not read, for not all of the {len(self)} rows that were found have it, or it was not asked for; they have "
                f"{self.names[:16]}, and {sorted(self.parts)[:16]} were read. See `found.keys` for rows that are not there"
            )
        if len(parts) == 1:
            return parts[0].values
        values: list[Any] = [None] * len(self)
        for part in parts:
            for at, row in enumerate(part.rows.tolist()):
                values[row] = part.values[at]
        return values
