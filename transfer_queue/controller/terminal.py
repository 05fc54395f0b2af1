"""A terminal consumer's clock and the batch it is filling. Its acknowledgement is the commit; each topic has one, or more for several models."""

from __future__ import annotations

from transfer_queue.controller.group import Group
from transfer_queue.controller.readiness import ReadySet
from transfer_queue.controller.versions import VersionCount


class Terminal:
    def __init__(self, number: int, batch: int, ready: ReadySet) -> None:
        self.number = number  # in the schema
        self.ready = ready
        self.epochs: list[int] = []  # epoch of each commit: its length is the clock, so that no second counter can drift
        self.trained = 0  # groups acknowledged; with one terminal consumer this is the ledger's count
        self.batch: dict[int, Group] = {}  # leased to the present step, by gid
        self.outside = VersionCount()  # versions of the open groups that are neither in the batch nor acknowledged
        self._batch_size = batch

    @property
    def clock(self) -> int:
        return len(self.epochs)

    def batch_size(self, target: int | None) -> int:
        """Groups of the present step: only the run's last batch may be short."""
        if target is None:
            return self._batch_size
        return max(len(self.batch), min(self._batch_size, target - self.trained))

    def select(self, limit: int, at_least: int, loaded: int | None, ordered: bool) -> list[Group]:
        """Move up to `limit` groups into the batch, oldest version first; none at all if there are fewer than `at_least`.

        ordered (policy wait): a group is taken only while no open group of an older version remains outside the batch.
        """
        if self.ready.count(loaded) < at_least:
            return []
        chosen: list[Group] = []
        while len(chosen) < limit and (head := self.ready.head(loaded)) is not None:
            group = head[0]
            oldest = self.outside.min()
            if ordered and oldest is not None and group.version > oldest:
                break
            self.ready.pop(1, loaded)
            self.outside.remove(group.version)
            self.batch[group.gid] = group
            chosen.append(group)
        if len(chosen) < at_least:
            for group in chosen:
                self.put_back(group)
            return []
        return chosen

    def put_back(self, group: Group) -> None:
        """A group of the batch is ready again."""
        del self.batch[group.gid]
        self.outside.add(group.version)
        self.ready.add(group, None)

    def reversion(self, group: Group, version: int) -> None:
        """The group gets another version; call before `group.version` changes."""
        if group.gid not in self.batch and self.number not in group.acked_by:
            self.outside.remove(group.version)
            self.outside.add(version)

    def forget(self, group: Group) -> None:
        """The group ends: it leaves the batch, or what is outside of it."""
        if self.batch.pop(group.gid, None) is None and self.number not in group.acked_by:
            self.outside.remove(group.version)

    def commit(self, epoch: int) -> list[Group]:
        """Acknowledge the batch; returns its groups in canonical order."""
        groups = [self.batch[gid] for gid in sorted(self.batch)]
        self.batch.clear()
        for group in groups:
            group.acked_by.add(self.number)
            group.leased_by.discard(self.number)
        self.trained += len(groups)
        self.epochs.append(epoch)
        return groups
