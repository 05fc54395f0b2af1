"""The groups that one terminal consumer may get again: first in, first out, bounded in number and bytes, in and out of leases.

Each group that is kept holds one reference to each of its blocks, and is in exactly one place: in the lots, or in a lease. A lease's groups are not
evicted. Nothing here depends on how much is kept but what looks at a lost shard, and a snapshot.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

import numpy as np

from transfer_queue.controller import kept
from transfer_queue.controller.blocks import Blocks
from transfer_queue.controller.kept import FrozenKept, Kept, kept_of
from transfer_queue.controller.lots import FrozenLots, Lots
from transfer_queue.controller.schema import Schema
from transfer_queue.controller.store import Store
from transfer_queue.messages import Record, Replay, ReplayStatus


class FrozenReplays(Record, frozen=True):
    """What a snapshot keeps."""

    kept: FrozenKept
    lots: FrozenLots
    leases: dict[int, list[int]]
    counts: dict[str, int]


class Replays:
    def __init__(self, number: int, schema: Schema, store: Store, blocks: Blocks, oldest: Callable[[], int | None]) -> None:
        """`number`: of the consumer. `oldest`: version of the oldest group that may be replayed now; None: any."""
        spec = schema.consumers[number].replay
        assert spec is not None, "a consumer without a replay has none"
        self.spec: Replay = spec
        self.nbytes = 0
        self._number, self._schema, self._store, self._blocks, self._oldest = number, schema, store, blocks, oldest
        window = schema.spec.window
        self._most_bytes = spec.set_aside(window.group_bytes) if window.group_bytes or spec.keep_bytes is not None else None  # None: nothing counts
        self._kept: OrderedDict[int, Kept] = OrderedDict()  # by gid, the oldest first; a plain dict looks for its first past all that were deleted
        self._lots = Lots(spec.seed, number)
        self._versions: dict[int, dict[int, None]] = {}  # version → gids
        self._leases: dict[int, list[int]] = {}  # lease → gids, as long as it is out
        self._leased: dict[int, int] = {}  # gid → its lease
        self._leased_bytes = 0
        self._counts = dict.fromkeys(("replayed", "evicted", "expired", "lost", "dropped", "no_room"), 0)

    def __len__(self) -> int:
        return len(self._kept)

    # ------------------------------------------------------------ in

    def keep(self, slots: np.ndarray) -> None:
        """Groups (slots) that were trained and are about to end, before their blocks are released."""
        oldest, versions = self._oldest(), self._store.groups.version[slots]
        slots = slots if oldest is None else slots[versions >= oldest]
        found = kept_of(self._store, self._schema, self._number, slots[-self.spec.keep_groups :])
        if self._blocks.lost:
            whole = [group for group in found if not self._blocks.went(group.blocks).any()]
            self._counts["lost"] += len(found) - len(whole)  # their trainer had read them by then
            found = whole
        evicted = [victim for group in found for victim in self._add(group)]
        self._blocks.hold(_together(found))
        self._blocks.release(_together(evicted))

    def _add(self, group: Kept) -> list[Kept]:
        """Returns who is to be released: the oldest that make room for it, or itself where that is not enough."""
        if len(self._leased) >= self.spec.keep_groups or self._is_over(self._leased_bytes + group.nbytes):
            self._counts["no_room"] += 1
            return [group]
        evicted = self._evict(self.spec.keep_groups - 1, group.nbytes)
        self.nbytes += group.nbytes
        self._kept[group.gid] = group
        self._versions.setdefault(group.version, {})[group.gid] = None
        self._return(group)
        return evicted

    def _evict(self, groups: int, nbytes: int = 0) -> list[Kept]:
        """The oldest that nobody has, until at most so many groups are left, and room for so many bytes. They are to be released."""
        evicted = []
        while len(self._kept) > groups or self._is_over(self.nbytes + nbytes):
            evicted.append(self._take_out(next(gid for gid in self._kept if gid not in self._leased)))
        self._counts["evicted"] += len(evicted)
        return evicted

    def _is_over(self, nbytes: int) -> bool:
        return self._most_bytes is not None and nbytes > self._most_bytes

    def _return(self, group: Kept) -> None:
        """Into the lots."""
        self._lots.add(group.gid, group.times if self.spec.order == "least_replayed" else 0)

    # ------------------------------------------------------------ leases

    @property
    def leased(self) -> int:
        return len(self._leased)

    def leased_with(self, leases: Iterable[int]) -> int:
        """How many came with these."""
        return sum(len(self._leases.get(lease, ())) for lease in leases)

    def draw(self, lease: int, count: int) -> list[Kept]:
        """Up to so many, none for less than one, with this lease."""
        gids = [self._lots.draw() for _ in range(min(count, len(self._lots)))]
        if not gids:
            return []
        self._leases[lease] = gids
        groups = [self._kept[gid] for gid in gids]
        self._leased |= dict.fromkeys(gids, lease)
        self._leased_bytes += sum(group.nbytes for group in groups)
        return groups

    def give_back(self, lease: int) -> None:
        """It ended, and the batch of it was not committed."""
        self._end_lease(lease)

    def commit(self, leases: Iterable[int]) -> list[Kept]:
        """The batch was committed with these leases, and the clock went on: what they brought was replayed, what others brought was not. Returns
        what was."""
        replayed = [self._kept[gid] for lease in dict.fromkeys(leases) for gid in self._leases.get(lease, ())]
        for group in replayed:
            group.times += 1
        self._counts["replayed"] += len(replayed)
        for lease in list(self._leases):
            self._end_lease(lease)
        self.expire()
        return replayed

    def _end_lease(self, lease: int) -> None:
        for gid in self._leases.pop(lease, ()):
            group = self._kept[gid]
            del self._leased[gid]
            self._leased_bytes -= group.nbytes
            self._return(group)
            if group.lost:
                self._remove([gid], "lost")

    def lease_of(self, gid: int) -> int:
        """-1: nobody has it."""
        return self._leased.get(gid, -1)

    # ------------------------------------------------------------ out

    def expire(self) -> None:
        """What is too old by now goes. The clock moves when nobody has anything: by the commit that ends the batch."""
        oldest = self._oldest()
        if oldest is None:
            return
        for version in sorted(version for version in self._versions if version < oldest):
            self._remove(list(self._versions[version]), "expired")

    def drop(self, gid: int) -> None:
        """Who has it under a lease gives it up."""
        self._leases[self._leased[gid]].remove(gid)
        del self._leased[gid]
        self._leased_bytes -= self._kept[gid].nbytes
        self._return(self._kept[gid])
        self._remove([gid], "dropped")

    def lose(self) -> int:
        """A shard ended: what lay there goes, but for what a trainer has, and may have read: that goes when its lease ends. Returns how many went."""
        if not self._kept:
            return 0
        found = list(self._kept.values())
        tables = [group.blocks for group in found]
        owners = np.arange(len(found)).repeat([len(table) for table in tables])
        gone = [found[at] for at in np.unique(owners[self._blocks.went(np.concatenate(tables))]).tolist()]
        for group in gone:
            group.lost = True
        ended = [group.gid for group in gone if group.gid not in self._leased]
        self._remove(ended, "lost")
        return len(ended)

    def clear(self) -> None:
        """The run is over: nobody gets anything any more."""
        self._blocks.release(_together(self._kept.values()))
        self.nbytes, self._leased_bytes = 0, 0
        for everything in (self._kept, self._lots, self._versions, self._leases, self._leased):
            everything.clear()

    def _remove(self, gids: list[int], why: str) -> None:
        """Out of the lots."""
        self._blocks.release(_together([self._take_out(gid) for gid in gids]))
        self._counts[why] += len(gids)

    def _take_out(self, gid: int) -> Kept:
        """It is to be released."""
        group = self._kept.pop(gid)
        self._lots.remove(gid)
        self.nbytes -= group.nbytes
        of_version = self._versions[group.version]
        del of_version[gid]
        if not of_version:
            del self._versions[group.version]
        return group

    # ------------------------------------------------------------ snapshots

    def status(self) -> ReplayStatus:
        return ReplayStatus(kept=len(self._kept), kept_bytes=self.nbytes, leased=len(self._leased), **self._counts)

    def freeze(self) -> FrozenReplays:
        groups = kept.freeze(list(self._kept.values()), len(self._schema.consumers[self._number].inputs))
        return FrozenReplays(groups, self._lots.freeze(), {lease: list(gids) for lease, gids in self._leases.items()}, dict(self._counts))

    def thaw(self, frozen: FrozenReplays) -> None:
        """Into new ones."""
        self._counts |= frozen.counts
        groups = list(kept.thaw(frozen.kept))
        self._blocks.hold(_together(groups))
        for group in groups:
            self._kept[group.gid] = group
            self._versions.setdefault(group.version, {})[group.gid] = None
            self.nbytes += group.nbytes
        self._lots.thaw(frozen.lots)
        for lease, gids in frozen.leases.items():
            self._leases[lease] = gids
            self._leased |= dict.fromkeys(gids, lease)
            self._leased_bytes += sum(self._kept[gid].nbytes for gid in gids)

    def loaded(self) -> None:
        """Out of an image, which has the bytes that are named and no others; nobody has anything. The window may be another, and so the bound."""
        for group in self._kept.values():
            group.nbytes = group.named_bytes()
        self.nbytes = sum(group.nbytes for group in self._kept.values())
        self.expire()
        self._blocks.release(_together(self._evict(self.spec.keep_groups)))


def _together(groups: Iterable[Kept]) -> np.ndarray:
    """A place in each of their blocks, [B, 4]."""
    return np.concatenate([np.zeros((0, 4), dtype=np.int64), *(group.blocks for group in groups)])
