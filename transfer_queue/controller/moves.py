"""Groups that made the same step of their lives at once: what an observer gets who can take them together; others get an `Event` a group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from transfer_queue.messages import Event


def _none() -> np.ndarray:
    return np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class Moves:
    """N groups; every array is [N] int64 and the receiver's own."""

    topic: str
    src: str  # state left ("" = new)
    dst: str  # state entered
    reason: str
    member: str
    clock: int  # the topic's version before
    gids: np.ndarray
    lives: np.ndarray
    versions: np.ndarray
    min_versions: np.ndarray
    rows: np.ndarray = field(default_factory=_none)  # of groups that end, else [0]
    tokens: np.ndarray = field(default_factory=_none)  # the same
    age: np.ndarray = field(default_factory=_none)  # the same

    def events(self, t_s: float) -> Iterator[Event]:
        """One a group. `t_s`: seconds since the controller's start."""
        fields = (self.gids, self.lives, self.versions, self.min_versions)
        ends = (self.rows, self.tokens, self.age) if len(self.rows) else ()
        for gid, life, version, min_version, *end in zip(*(values.tolist() for values in (*fields, *ends)), strict=True):
            data: dict[str, float | int | str] = {"life": life, "min_version": min_version}
            if end:
                data |= {"clock": self.clock, "rows": end[0], "tokens": end[1], "age": end[2]}
            yield Event(t_s, "group", self.topic, gid, self.src, self.dst, self.reason, version, self.member, data)
