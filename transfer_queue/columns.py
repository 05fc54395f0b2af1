"""Columns in memory: one contiguous buffer a column, never one object a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Jagged:
    """R runs of different length in one buffer: run r is `values[offsets[r]:offsets[r + 1]]`."""

    values: np.ndarray  # [offsets[-1], *shape]
    offsets: np.ndarray  # [R + 1] of integers, ascending from 0
    dtype: str = ""  # the schema's name of the values; by default numpy's. "bfloat16" and the like: `values` are bits (see transfer_queue.dtypes)

    def __post_init__(self) -> None:
        if self.values.ndim < 1 or self.offsets.ndim != 1 or len(self.offsets) < 1 or self.offsets.dtype.kind not in "iu":
            raise ValueError(
                f"Jagged takes values [N, …] and integer offsets [R + 1], got {self.values.shape} and {self.offsets.shape} of {self.offsets.dtype}"
            )
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.values) or (self.offsets[1:] < self.offsets[:-1]).any():
            raise ValueError(f"offsets must ascend from 0 to len(values) = {len(self.values)}, got {self.offsets.tolist()[:8]}…")
        if not self.dtype:
            object.__setattr__(self, "dtype", self.values.dtype.name)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        """Run `row` as a view."""
        if row < 0:
            row += len(self)
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def dense(self) -> np.ndarray:
        """[R, T, *shape] as a view, when all runs have the same length T. Raises ValueError naming the lengths when they have not."""
        lengths = self.lengths
        width = int(lengths[0]) if len(lengths) else 0
        if (lengths != width).any():
            found = np.unique(lengths).tolist()
            raise ValueError(f"runs have lengths {found[:8]}{'…' if len(found) > 8 else ''}: only runs of one length are dense; use padded(value)")
        return self.values.reshape(len(self), width, *self.values.shape[1:])

    def padded(self, value: Any) -> np.ndarray:
        """[R, longest run, *shape], runs at the left, `value` in the rest (one copy). Raises ValueError when the dtype cannot hold `value`.

        Where `values` are bits ("bfloat16" and the like), `value` is bits too: 0 is zero in all of them.
        """
        lengths, shape = self.lengths, self.values.shape[1:]
        filled = np.full((len(self), int(lengths.max(initial=0)), *shape), self._filler(value), dtype=self.values.dtype)
        filled[np.arange(filled.shape[1]) < lengths[:, None]] = self.values
        return filled

    def _filler(self, value: Any) -> np.ndarray:
        number, wanted = value.item() if isinstance(value, np.generic) else value, self.values.dtype
        if wanted.kind == "b" and number in (0, 1):
            number = bool(number)
        try:
            with np.errstate(over="raise"):
                if isinstance(number, bool | int | float | complex) and np.result_type(wanted, number) == wanted:
                    return np.full((), number, dtype=wanted)
        except (OverflowError, FloatingPointError):
            pass
        raise ValueError(f"value={value!r} is no {wanted}: the padding would be another number; pad with a value that it can hold")

    @staticmethod
    def of(runs: Sequence[Sequence[Any] | np.ndarray], dtype: str) -> Jagged:
        """Concatenate runs of numbers, or of values of one shape (one copy). For a dtype that numpy lacks see `codec.from_torch`."""
        arrays = [np.asarray(run, dtype=dtype) for run in runs]
        offsets = np.zeros(len(runs) + 1, dtype=np.int64)
        np.cumsum([len(run) for run in arrays], out=offsets[1:])
        shape = next((run.shape[1:] for run in arrays if len(run)), ())  # an empty list has no shape of its own
        arrays = [run if len(run) else run.reshape(0, *shape) for run in arrays]
        return Jagged(np.concatenate(arrays) if arrays else np.zeros(0, dtype=dtype), offsets)
