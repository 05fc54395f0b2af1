"""Leases of consumers: what was handed out, to whom, until when. A lease is acknowledged, given back, or handed out again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

from transfer_queue.controller.readiness import Item
from transfer_queue.controller.timers import Timer

MAX_LAPSED = 16  # leases of one owner that ran out and may still be answered


@dataclass(slots=True, eq=False)
class Lease:
    id: int
    consumer: int  # number in the schema
    owner: str  # "name#incarnation"
    items: list[Item]
    since: float  # when it was given, seconds of the controller's clock
    deadline: float = math.inf  # later when its owner is through with one that it took before
    timer: Timer | None = None  # None: a terminal lease, which ends only with its owner's incarnation

    def gids(self) -> list[int]:
        """Of the same rows."""
        return list(dict.fromkeys(group.gid for group, row in self.items if group.open and not group.served(self.consumer, row)))

    def rows(self) -> int:
        """Those still to be done: of open groups, and not served under another lease meanwhile."""
        return sum(len(group.rows) if row is None else 1 for group, row in self.items if group.open and not group.served(self.consumer, row))


class Leases:
    """Of one topic. Ids are never reused: an id is the fence of a late write-back."""

    def __init__(self, new_id: Callable[[], int], now: Callable[[], float]) -> None:
        self._new_id, self._now = new_id, now
        self._leases: dict[int, Lease] = {}
        self._by_owner: dict[str, set[int]] = {}
        self._lapsed: dict[str, dict[int, Lease]] = {}  # by owner, oldest first

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._leases.values())

    def add(self, consumer: int, owner: str, items: list[Item]) -> Lease:
        lease = Lease(self._new_id(), consumer, owner, items, self._now())
        self._leases[lease.id] = lease
        self._by_owner.setdefault(owner, set()).add(lease.id)
        return lease

    def find(self, lease_id: int, consumer: int, owner: str) -> Lease | None:
        """The lease if it is still this owner's."""
        lease = self._leases.get(lease_id)
        return lease if lease is not None and lease.consumer == consumer and lease.owner == owner else None

    def renew_after(self, answered: Lease, deadline: float) -> None:
        """Its owner is through with this one. What it took later waited for it and gets its whole time from now on; what it took before gets none, or
        one thread of a member that hangs would be covered by another that does not."""
        for lease_id in self._by_owner.get(answered.owner, ()):
            if lease_id > answered.id:
                self._leases[lease_id].deadline = deadline

    def find_lapsed(self, lease_id: int, consumer: int, owner: str) -> Lease | None:
        """The same for one that ran out; it can be answered once."""
        lease = self._lapsed.get(owner, {}).get(lease_id)
        return lease if lease is not None and lease.consumer == consumer else None

    def keep_lapsed(self, lease: Lease) -> None:
        mine = self._lapsed.setdefault(lease.owner, {})
        mine[lease.id] = lease
        if len(mine) > MAX_LAPSED:
            del mine[next(iter(mine))]

    def end_lapsed(self, lease: Lease) -> None:
        mine = self._lapsed[lease.owner]
        del mine[lease.id]
        if not mine:
            del self._lapsed[lease.owner]

    def forget_lapsed(self, owner: str) -> None:
        self._lapsed.pop(owner, None)

    def answerable(self, owner: str) -> list[Lease]:
        """Everything that this owner may still write back, drop or commit."""
        return [*self.of(owner), *self._lapsed.get(owner, {}).values()]

    def lapsed(self) -> list[Lease]:
        return list(chain.from_iterable(mine.values() for mine in self._lapsed.values()))

    def get(self, lease_id: int) -> Lease | None:
        return self._leases.get(lease_id)

    def remove(self, lease: Lease) -> None:
        del self._leases[lease.id]
        owned = self._by_owner[lease.owner]
        owned.discard(lease.id)
        if not owned:
            del self._by_owner[lease.owner]

    def of(self, owner: str) -> list[Lease]:
        return [self._leases[lease_id] for lease_id in sorted(self._by_owner.get(owner, ()))]
