"""Leases of consumers: what was handed out, to whom, until when. A lease is acknowledged, given back, or handed out again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from transfer_queue.controller.group import SERVED, Group
from transfer_queue.controller.store import Store, gids_of, keys_of
from transfer_queue.controller.timers import Due, Timer
from transfer_queue.messages import Record

NEVER_ALIVE = -1  # no slot has this generation
MAX_LAPSED = 16  # leases of one owner that ran out and may still be answered


class FrozenLease(Record, frozen=True):
    """What a snapshot keeps; as `Lease`."""

    id: int
    consumer: int
    owner: str
    rows: np.ndarray
    groups: np.ndarray
    generations: np.ndarray
    keys: np.ndarray
    newest: np.ndarray
    since: float
    deadline: float
    named: tuple[bytes, bytes] | None
    due: Due | None


class FrozenLeases(Record, frozen=True):
    current: list[FrozenLease]
    lapsed: list[FrozenLease]  # those of an owner from the oldest on


@dataclass(slots=True, eq=False)
class Lease:
    """What was handed out is kept row by row, also for consumers of whole groups: R rows, those of a group adjacent. A group that ended meanwhile,
    whose slots may be others' by now, is told by its generation."""

    id: int
    consumer: int  # number in the schema
    owner: str  # "name#incarnation"
    store: Store
    rows: np.ndarray  # [R] slots
    groups: np.ndarray  # [R] slots
    generations: np.ndarray  # [R] of the groups
    keys: np.ndarray  # [R] (gid, row) as one number
    newest: np.ndarray  # [R] version of the newest token
    since: float  # when it was given, seconds of the controller's clock
    deadline: float = math.inf  # later when its owner is through with one that it took before
    named: tuple[bytes, bytes] | None = None  # gids and rows as they were sent: who answers all of it says the same; None when some are done
    timer: Timer | None = None  # None: a terminal lease, which ends only with its owner's incarnation

    def alive(self) -> np.ndarray:
        """[R] bool: of groups that are still open."""
        return self.store.groups.alive(self.groups, self.generations)

    def due(self) -> np.ndarray:
        """[R] bool: still to be done: of open groups, and not served under another lease meanwhile."""
        return self.alive() & (self.store.rows.missing[self.rows, self.consumer] != SERVED)

    def holds(self, group: Group) -> bool:
        """Whether something of this group is still to be done."""
        return bool((self.due() & (self.groups == group.slot)).any())

    def gids(self) -> list[int]:
        """Of the rows that are still to be done."""
        return list(dict.fromkeys(gids_of(self.keys[self.due()]).tolist()))

    def groups_left(self) -> int:
        """Groups that are still open."""
        return len(np.unique(self.groups[self.alive()]))

    def count(self) -> int:
        """Rows that are still to be done."""
        return int(np.count_nonzero(self.due()))

    def freeze(self) -> FrozenLease:
        """Its arrays are never written to: they need no copy."""
        due = None if self.timer is None else self.timer.freeze()
        arrays = (self.rows, self.groups, self.generations, self.keys, self.newest)
        return FrozenLease(self.id, self.consumer, self.owner, *arrays, self.since, self.deadline, self.named, due)

    def keep(self, which: np.ndarray) -> None:
        """Only these rows are left of it; [R] bool."""
        self.named = None
        self.rows, self.groups, self.generations = self.rows[which], self.groups[which], self.generations[which]
        self.keys, self.newest = self.keys[which], self.newest[which]


class Leases:
    """Of one topic. Ids are never reused: an id is the fence of a late write-back."""

    def __init__(self, store: Store, new_id: Callable[[], int], now: Callable[[], float]) -> None:
        self._store, self._new_id, self._now = store, new_id, now
        self._leases: dict[int, Lease] = {}
        self._by_owner: dict[str, set[int]] = {}
        self._lapsed: dict[str, dict[int, Lease]] = {}  # by owner, oldest first

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._leases.values())

    def add(self, consumer: int, owner: str, rows: np.ndarray) -> Lease:
        """`rows`: slots."""
        store, table = self._store, self._store.rows
        groups = table.group[rows]
        generations, gids = store.groups.generation[groups], store.groups.gid[groups]
        keys = keys_of(gids, table.index[rows])
        lease = Lease(self._new_id(), consumer, owner, store, rows, groups, generations, keys, table.newest[rows], self._now())
        table.lease[rows, consumer] = lease.id
        self._keep(lease)
        return lease

    def _keep(self, lease: Lease) -> None:
        self._leases[lease.id] = lease
        self._by_owner.setdefault(lease.owner, set()).add(lease.id)

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

    def later(self, lease: Lease) -> list[Lease]:
        """This one, and what its owner took after it."""
        return [other for other in self.of(lease.owner) if other.id >= lease.id]

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

    def holding(self, groups: np.ndarray) -> list[Lease]:
        """Those that may hold something of these groups (slots), lapsed ones aside. Rows know under which they went: no other needs a look."""
        named = sorted(set(self._store.rows.lease[self._store.rows_of(groups)[0]].ravel().tolist()))
        return [lease for lease_id in named if (lease := self._leases.get(lease_id)) is not None]

    def answerable_of(self, owner: str, groups: np.ndarray) -> list[Lease]:
        """`answerable`, of what this owner may hold of these groups (slots)."""
        return [*(lease for lease in self.holding(groups) if lease.owner == owner), *self._lapsed.get(owner, {}).values()]

    def lapsed(self) -> list[Lease]:
        return list(chain.from_iterable(mine.values() for mine in self._lapsed.values()))

    def void(self, groups: np.ndarray) -> None:
        """Nobody has a lease on these groups (slots) any more: what is still written for them comes too late."""
        for lease in [*self, *self.lapsed()]:
            lease.generations = np.where(np.isin(lease.groups, groups), NEVER_ALIVE, lease.generations)

    def freeze(self) -> FrozenLeases:
        return FrozenLeases([lease.freeze() for lease in self], [lease.freeze() for lease in self.lapsed()])

    def thaw(self, frozen: FrozenLeases) -> Iterator[tuple[Lease, Due]]:
        """Those that still have to be asked at a deadline."""
        for kept, keep in ((frozen.current, self._keep), (frozen.lapsed, self.keep_lapsed)):
            for old in kept:
                arrays = (old.rows, old.groups, old.generations, old.keys, old.newest)
                lease = Lease(old.id, old.consumer, old.owner, self._store, *arrays, old.since, old.deadline, old.named)
                keep(lease)
                if old.due is not None:
                    yield lease, old.due

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
