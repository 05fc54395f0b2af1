"""Columns in memory: one contiguous buffer a column, never one object a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Jagged:
    """R runs of different length in one buffer: run r is `values[offsets[r]:offsets[r + 1]]`."""

    values: np.ndarray  # [offsets[-1]]
    offsets: np.ndarray  # [R + 1] int64, ascending from 0

    def __post_init__(self) -> None:
        if self.values.ndim != 1 or self.offsets.ndim != 1 or len(self.offsets) < 1:
            raise ValueError(f"Jagged takes 1-d values and offsets, got shapes {self.values.shape} and {self.offsets.shape}")
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.values) or (np.diff(self.offsets) < 0).any():
            raise ValueError(f"offsets must ascend from 0 to len(values) = {len(self.values)}, got {self.offsets.tolist()[:8]}…")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        """Run `row` as a view."""
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    @staticmethod
    def of(runs: Sequence[Sequence[float] | np.ndarray], dtype: str) -> Jagged:
        """Concatenate runs (one copy)."""
        offsets = np.zeros(len(runs) + 1, dtype=np.int64)
        np.cumsum([len(run) for run in runs], out=offsets[1:])
        values = np.concatenate([np.asarray(run, dtype=dtype) for run in runs]) if runs else np.zeros(0, dtype=dtype)
        return Jagged(values, offsets)
