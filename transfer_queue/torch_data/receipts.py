"""Which rows a batch holds, and under whose leases: it comes beside the batch out of a worker process, for whoever is to say that they are done."""

from __future__ import annotations

import msgspec
import numpy as np

from transfer_queue import messages as m


class Part(msgspec.Struct, frozen=True):
    """Neighbouring rows of a batch that came under one lease."""

    lease: int
    count: int  # rows; 0: what this lease had left ended before it could be read
    last: bool  # no later batch has rows of this lease


class Receipt(msgspec.Struct, frozen=True):
    """Of R rows."""

    member: str
    incarnation: int
    gids: np.ndarray  # [R] int64
    rows: np.ndarray  # [R] int64, place in the group
    oldest: np.ndarray  # [R] int64, version of the oldest token
    newest: np.ndarray  # [R] int64
    parts: tuple[Part, ...]  # their counts add up to R
    version: int  # the topic's clock when they were handed out; of a terminal consumer the step that it trains
    groups: int  # terminal: in the whole batch of that step, over all that take part; else 0
    registration: m.OkRegistered | None = None  # with the first of each incarnation: what it takes to speak for it

    @property
    def leases(self) -> list[int]:
        """Those that this batch is the last of."""
        return [part.lease for part in self.parts if part.last]

    def keys(self) -> list[tuple[int, int]]:
        """(gid, row) of each."""
        return list(zip(self.gids.tolist(), self.rows.tolist(), strict=True))


class Ended(msgspec.Struct, frozen=True):
    """The last that comes from a worker: nothing will ever come again."""

    worker: int
    reason: str
