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


def part_of(total: int, part: int, parts: int) -> int:
    """How many of `total` are the share of `part`, 0-based: all shares add up to the total, and none differs from another by more than one."""
    return total * (part + 1) // parts - total * part // parts


class OpenStep:
    """The step of a terminal consumer that is being trained: what has come of its batch, and the leases that its commit must name."""

    def __init__(self, share: tuple[int, int] | None = None) -> None:
        """`share`: (rank, ranks), where ranks share a step out among them and each has its own part to come."""
        self._rank, self._ranks = share or (0, 1)
        self.number: int | None = None  # None: nothing of it has come
        self.leases: list[int] = []
        self._seen: set[int] = set()
        self._expected = 0

    def add(self, receipt: Receipt) -> None:
        """A batch was handed over. One of a newer step: somebody else has committed this one."""
        if receipt.version != self.number:
            self.forget()
            self.number = receipt.version
        self.leases += receipt.leases
        self._seen.update(receipt.gids.tolist())
        self._expected = part_of(receipt.groups, self._rank, self._ranks)

    def forget(self) -> None:
        """It was committed."""
        self.number, self.leases, self._seen, self._expected = None, [], set(), 0

    @property
    def groups(self) -> int:
        """Whose rows have come."""
        return len(self._seen)

    @property
    def complete(self) -> bool:
        """Everything has come: with shares, of this rank's part."""
        return self.number is not None and self.groups == self._expected
