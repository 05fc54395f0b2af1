"""What a sampler of one's own sees and returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

WINDOW = 1024  # candidates that are looked at, unless twice the take's limit is more: a take costs the same whatever is stored


@dataclass(frozen=True)
class Candidates:
    """N items that are ready, rows or whole groups as the consumer's unit says, oldest version first, then by gid and row. Every array is [N] int64
    and a copy, the sampler's own."""

    gid: np.ndarray
    row: np.ndarray  # place in the group; 0 for whole groups
    version: np.ndarray  # of the group: that of its oldest token
    newest: np.ndarray  # version of the item's newest token
    tokens: np.ndarray  # as their producer counted them
    rows: np.ndarray  # 1 for a row
    order: np.ndarray  # of admission, counted over all groups of the topic

    def __len__(self) -> int:
        return len(self.gid)


Choose = Callable[[Candidates, int], Any]
"""(ready, limit) → at most `limit` places in `ready`, each once, in the order in which they are served: an array or list of whole numbers."""
