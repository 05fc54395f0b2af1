"""Label values that come from outside, so that no stranger makes time series without end: a role, the reason of a drop."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

MOST = 32  # values of one label, in the life of a process
MOST_CHARACTERS = 64
OTHER = "other"


class Vocabulary:
    """The first values that came stay themselves for good; all later ones are one. So sums by label never go back, as counters must not."""

    def __init__(self, known: Iterable[str] = (), most: int = MOST) -> None:
        """`known` values count too."""
        self._most = most
        self._known = dict.fromkeys(known)
        self._lock = threading.Lock()  # scrapes come in threads

    def label(self, value: str) -> str:
        short = value[:MOST_CHARACTERS]
        with self._lock:
            if short not in self._known and len(self._known) < self._most:
                self._known[short] = None
            return short if short in self._known else OTHER

    def sums(self, values: Mapping[str, float]) -> dict[str, float]:
        """By label."""
        found: dict[str, float] = {}
        for value, count in values.items():
            label = self.label(value)
            found[label] = found.get(label, 0) + count
        return found

    def largest(self, values: Mapping[str, float]) -> dict[str, float]:
        """By label."""
        found: dict[str, float] = {}
        for value, amount in values.items():
            label = self.label(value)
            found[label] = max(amount, found.get(label, amount))
        return found
