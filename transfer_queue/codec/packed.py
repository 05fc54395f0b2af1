"""Rows of one column in one buffer: what every kind of column is while it travels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transfer_queue.columns import Jagged
from transfer_queue.messages.base import Kind

Column = np.ndarray | Jagged | list[Any]
"""What a reader gets: scalar → ndarray [R, *shape]; per_token → Jagged; blob → list[bytes]; text → list[str]; object → list of values."""


@dataclass(frozen=True)
class Packed:
    """R rows of one column: row r is `values[offsets[r]:offsets[r + 1]]`."""

    values: np.ndarray  # 1-d, contiguous, in the storage dtype of `dtype`, little-endian
    offsets: np.ndarray  # [R + 1] int64, in elements of `values`, ascending from 0
    kind: Kind
    dtype: str  # name in the schema's spelling
    shape: tuple[int, ...] = ()  # of one value

    def __len__(self) -> int:
        return len(self.offsets) - 1


def offsets_of(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """[R + 1] int64: where runs of these lengths begin when they lie side by side, and where the last one ends."""
    if len(lengths) == 1:  # a row alone, which is put and read most often: a quarter of the time
        return np.array([0, lengths[0]], dtype=np.int64)
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
