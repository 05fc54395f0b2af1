"""What is put: rows of token ids and log-probabilities, dense or jagged. numpy alone, for the peers' environments load this file, too."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

COLUMNS = (("ids", "int64"), ("logprobs", "float32"))
TOKEN_BYTES = 12


@dataclass(frozen=True)
class Case:
    rows: int
    tokens: int  # a row; of a jagged case, in the mean
    jagged: bool = False
    group_rows: int = 1  # rows of a group, where the queue has groups

    @property
    def nbytes(self) -> int:
        return self.rows * self.tokens * TOKEN_BYTES

    @property
    def label(self) -> str:
        size = f"{self.nbytes / 1e9:.3g} GB" if self.nbytes >= 1e9 - 1e6 else f"{self.nbytes / 1e6:.3g} MB"
        return f"{size} in {self.rows:,} rows, {'jagged' if self.jagged else 'dense'}"

    def wire(self) -> dict[str, Any]:
        return asdict(self)

    def lengths(self) -> np.ndarray:
        """[rows] tokens; jagged ones lie between half and one and a half of the mean, and have the same sum as dense ones."""
        if not self.jagged:
            return np.full(self.rows, self.tokens, dtype=np.int64)
        half = np.random.default_rng(1).integers(0, self.tokens // 2 + 1, size=self.rows // 2)
        odd = np.zeros(self.rows % 2, dtype=np.int64)
        return self.tokens + np.concatenate([half, -half, odd])

    def offsets(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.lengths())])

    def values(self) -> dict[str, np.ndarray]:
        """One flat array a column, every page written."""
        return {name: np.arange(self.rows * self.tokens, dtype=dtype) for name, dtype in COLUMNS}


def read_every_byte(arrays: list[np.ndarray]) -> int:
    """A sum over 8-byte words, numpy's fastest way through memory; what is left over of an array byte by byte."""
    total = 0
    for array in arrays:
        flat = array.reshape(-1).view(np.uint8)
        whole = len(flat) // 8 * 8
        total += int(flat[:whole].view(np.uint64).sum()) + int(flat[whole:].sum())
    return total
