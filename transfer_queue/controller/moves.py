"""Several groups that made the same step of their lives at once: what an observer gets who can take them together; others get an `Event` a group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from transfer_queue.messages import Event

_NONE = np.zeros(0, dtype=np.int64)


def _none() -> np.ndarray:
    return _NONE


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
        topic, src, dst, reason, member, clock = self.topic, self.src, self.dst, self.reason, self.member, self.clock
        fields = [values.tolist() for values in (self.gids, self.lives, self.versions, self.min_versions)]
        data: dict[str, float | int | str]
        if not len(self.rows):
            for gid, life, version, min_version in zip(*fields, strict=True):
                data = {"life": life, "min_version": min_version}
                yield Event(t_s, "group", topic, gid, src, dst, reason, version, member, data)
            return
        fields += [values.tolist() for values in (self.rows, self.tokens, self.age)]
        for gid, life, version, min_version, rows, tokens, age in zip(*fields, strict=True):
            data = {"life": life, "min_version": min_version, "clock": clock, "rows": rows, "tokens": tokens, "age": age}
            yield Event(t_s, "group", topic, gid, src, dst, reason, version, member, data)
