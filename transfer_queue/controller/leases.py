"""Leases of consumers: what was handed out, to whom, until when. A lease is acknowledged, given back, or handed out again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from transfer_queue.controller.readiness import Item
from transfer_queue.controller.timers import Timer


@dataclass(slots=True, eq=False)
class Lease:
    id: int
    consumer: int  # number in the schema
    owner: str  # "name#incarnation"
    items: list[Item]
    timer: Timer | None = None  # None: a terminal lease, which ends only with its owner's incarnation

    def rows(self) -> int:
        return sum(len(group.rows) if row is None else 1 for group, row in self.items if group.open)


class Leases:
    """Of one topic. Ids are never reused: an id is the fence of a late write-back."""

    def __init__(self, new_id: Callable[[], int]) -> None:
        self._new_id = new_id
        self._leases: dict[int, Lease] = {}
        self._by_owner: dict[str, set[int]] = {}

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._leases.values())

    def add(self, consumer: int, owner: str, items: list[Item]) -> Lease:
        lease = Lease(self._new_id(), consumer, owner, items)
        self._leases[lease.id] = lease
        self._by_owner.setdefault(owner, set()).add(lease.id)
        return lease

    def find(self, lease_id: int, consumer: int, owner: str) -> Lease | None:
        """The lease if it is still this owner's."""
        lease = self._leases.get(lease_id)
        return lease if lease is not None and lease.consumer == consumer and lease.owner == owner else None

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
