"""How often each of a few whole numbers came: means and percentiles of millions of tokens without sorting them."""

from __future__ import annotations

import math

import numpy as np


class Tally:
    """Of small integers, e.g. the staleness of every token of a batch. Memory goes with the range of the values, not with their number."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, values: np.ndarray) -> None:
        """`values`: integers of any shape."""
        if not values.size:
            return
        least = int(values.min())
        for offset, count in enumerate(np.bincount((values - least).ravel()).tolist()):
            if count:
                self._counts[least + offset] = self._counts.get(least + offset, 0) + count

    def __len__(self) -> int:
        return sum(self._counts.values())

    def mean(self) -> float:
        """Raises ZeroDivisionError, as the others raise ValueError, where nothing was added."""
        return sum(value * count for value, count in self._counts.items()) / len(self)

    def min(self) -> float:
        return float(min(self._counts))

    def max(self) -> float:
        return float(max(self._counts))

    def percentile(self, percent: float) -> float:
        """As `numpy.percentile`: linear between the two nearest values."""
        place = percent / 100 * (len(self) - 1)
        below, above = self._at(math.floor(place)), self._at(math.ceil(place))
        return below + (above - below) * (place - math.floor(place))

    def _at(self, rank: int) -> float:
        """The value of this rank, from 0."""
        for value in sorted(self._counts):
            rank -= self._counts[value]
            if rank < 0:
                return float(value)
        raise ValueError("nothing was counted: there is no such rank")
