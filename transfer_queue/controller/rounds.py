"""What was chosen once for all data-parallel ranks of a consumer, and which rank has had its part.

A round is dealt when a rank asks that has had its part of all before. Every part is a lease from then on, of the rank itself until a member asks for
it; so what was dealt is neither ready for others nor lost, and a rank that died gets its own part again when it comes back.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from transfer_queue.controller.leases import Lease, Leases
from transfer_queue.messages import Record
from transfer_queue.samplers import Plan, balanced

MOST_AHEAD = 8  # rounds that one rank may be ahead of another, which may be dead for good


class Part(NamedTuple):
    round: int
    rank: int


class FrozenRounds(Record, frozen=True):
    """What a snapshot keeps; the leases are the topic's."""

    dealt: int
    waiting: list[list[tuple[int, int]]]  # [ranks] heaps of (round, lease)
    parts: list[tuple[int, int, int]]  # (lease, round, rank)

    def ended(self) -> FrozenRounds:
        """All of them: whoever comes begins with the next one."""
        return FrozenRounds(self.dealt, [[] for _ in self.waiting], [])


class Rounds:
    """Of one consumer."""

    def __init__(self, number: int, plan: Plan, leases: Leases) -> None:
        self.number, self.ranks = number, plan.ranks
        self._balanced = plan.balanced
        self._leases = leases
        self._dealt = 0
        self._waiting: list[list[tuple[int, int]]] = [[] for _ in range(self.ranks)]  # [ranks] heaps of (round, id of its lease or -1)
        self._parts: dict[int, Part] = {}  # by lease, waiting or handed out

    def may_deal(self) -> bool:
        return max(map(len, self._waiting)) < MOST_AHEAD

    def cut(self, tokens: np.ndarray) -> list[np.ndarray]:
        """[n] tokens of the items of a round → places of each rank's part."""
        if self._balanced:
            return balanced(tokens, self.ranks)
        return np.array_split(np.arange(len(tokens)), self.ranks)

    def deal(self, parts: list[np.ndarray]) -> None:
        """[ranks] slots of rows. A rank without any still gets its turn: others may wait for it in a collective."""
        for rank, rows in enumerate(parts):
            lease = self._leases.add(self.number, owner_of(rank), rows).id if len(rows) else -1
            if lease != -1:
                self._parts[lease] = Part(self._dealt, rank)
            heapq.heappush(self._waiting[rank], (self._dealt, lease))
        self._dealt += 1

    def waits(self, rank: int) -> bool:
        """Whether a part was dealt to this rank that it has not had."""
        return bool(self._waiting[rank])

    def fits(self, rank: int, loaded: int) -> bool:
        """Whether weights of this version may serve the part that waits for the rank: another rank's were asked for when it was dealt."""
        lease = self._leases.get(self._waiting[rank][0][1])
        return lease is None or int(lease.newest[lease.due()].max(initial=0)) <= loaded

    def hand_out(self, rank: int, owner: str) -> tuple[int, Lease | None]:
        """(round, the part that waits for the rank under a lease of this member; None: an empty one, or everything in it has ended since)."""
        number, lease_id = heapq.heappop(self._waiting[rank])
        lease = self._leases.get(lease_id)
        if lease is None:
            return number, None
        part = self._parts.pop(lease_id)
        self._leases.remove(lease)
        lease.keep(lease.due())
        if not len(lease.rows):
            return number, None
        handed = self._leases.add(self.number, owner, lease.rows)
        self._parts[handed.id] = part
        return number, handed

    def take_back(self, lease: Lease) -> bool:
        """It ended undone: what is left of it waits for the same rank, before later rounds. False: it is the part of no round."""
        part = self._parts.pop(lease.id, None)
        rows = lease.rows[lease.due()]
        if part is not None and len(rows):
            again = self._leases.add(self.number, owner_of(part.rank), rows)
            self._parts[again.id] = part
            heapq.heappush(self._waiting[part.rank], (part.round, again.id))
        return part is not None

    def handed_with(self, lease: Lease) -> list[Lease]:
        """What the rank of this lease has, itself included."""
        rank = self._parts[lease.id].rank
        found = [self._leases.get(number) for number, part in self._parts.items() if part.rank == rank]
        return [each for each in found if each is not None and not waits_for_its_rank(each)]

    def done(self, lease: Lease) -> None:
        self._parts.pop(lease.id, None)

    def clear(self) -> None:
        """Nobody gets what waits."""
        for waiting in self._waiting:
            for _, lease_id in waiting:
                lease = self._leases.get(lease_id)
                if lease is not None:
                    self._leases.remove(lease)
                    self._parts.pop(lease_id, None)
            waiting.clear()

    def freeze(self) -> FrozenRounds:
        return FrozenRounds(self._dealt, self._waiting, [(lease, *part) for lease, part in self._parts.items()])

    def thaw(self, frozen: FrozenRounds) -> None:
        """Into new ones."""
        self._dealt, self._waiting = frozen.dealt, frozen.waiting
        self._parts = {lease: Part(number, rank) for lease, number, rank in frozen.parts}


def owner_of(rank: int) -> str:
    """Of a part that no member has: no member is called so, for their names have an incarnation."""
    return f"rank {rank}"


def waits_for_its_rank(lease: Lease) -> bool:
    return "#" not in lease.owner
