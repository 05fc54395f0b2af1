"""A terminal consumer's clock and the batch it is filling. Its acknowledgement is the commit; each topic has one, or more for several models."""

from __future__ import annotations

import numpy as np

from transfer_queue.controller.picking import Picker
from transfer_queue.controller.readiness import ReadySet
from transfer_queue.controller.store import Store, keys_of
from transfer_queue.controller.versions import VersionCount
from transfer_queue.messages import Record


class FrozenTerminal(Record, frozen=True):
    """What a snapshot keeps: the batch, and what is outside of it, are told by the tables."""

    epochs: list[int]
    trained: int


def size_of(batch: int, held: int, trained: int, target: int | None) -> int:
    """Groups of a step's batch of which so many are leased, after so many that are trained, of a run that trains `target` (None: not known yet)."""
    return batch if target is None else max(held, min(batch, target - trained))


class Terminal:
    def __init__(self, number: int, batch: int, ready: ReadySet, picker: Picker, store: Store) -> None:
        self.number = number  # in the schema
        self.ready, self.picker = ready, picker
        self.epochs: list[int] = []  # epoch of each commit: its length is the clock, so that no second counter can drift
        self.trained = 0  # groups acknowledged; with one terminal consumer this is the ledger's count
        self.batch: dict[int, int] = {}  # leased to the present step: gid → slot
        self.outside = VersionCount()  # versions of the open groups that are neither in the batch nor acknowledged
        self._batch_size = batch
        self._store = store

    @property
    def clock(self) -> int:
        return len(self.epochs)

    def epoch_of(self, version: int) -> int:
        """In which this version was made; 0 for the first one, and for what is none."""
        return self.epochs[version - 1] if 0 < version <= self.clock else 0

    def made(self, epoch: int, version: int) -> bool:
        """Whether these weights are of the history that leads to the clock. A version is one of the epoch in which it was committed, and of every
        later one up to that in which the next was: a recovered trainer publishes where it begins under its own epoch. What an older trainer made
        beyond that has the same versions and an older epoch."""
        if not 0 <= version <= self.clock:
            return False
        return self.epoch_of(version) <= epoch and (version == self.clock or epoch <= self.epochs[version])

    def batch_size(self, target: int | None) -> int:
        """Groups of the present step: only the run's last batch may be short."""
        return size_of(self._batch_size, len(self.batch), self.trained, target)

    def select(self, limit: int, at_least: int, loaded: int | None, ordered: bool) -> np.ndarray:
        """Move up to `limit` groups (slots) into the batch, in its sampler's order; none at all if there are fewer than `at_least`.

        ordered (policy wait): a group is taken only while no open group of an older version remains outside the batch.
        """
        wanted = limit
        if self.ready.count(loaded) < at_least:
            return np.zeros(0, dtype=np.int64)
        if not ordered:
            chosen = self._chosen(self.picker.pop(limit, loaded, at_least))
        else:
            parts: list[np.ndarray] = []
            while limit > 0 and (version := self.ready.version(loaded)) is not None and version == self.outside.min():
                parts.append(self._chosen(self.picker.pop_version(version, limit, loaded)))
                limit -= len(parts[-1])
            chosen = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
        return self._even(chosen, wanted, at_least)

    def select_alike(self, limit: int, at_least: int, left: int, loaded: int | None, more: bool) -> np.ndarray:
        """The same, groups of one version only: the batch's, or for a new one the oldest that can fill it. `left`: groups that the batch still
        misses; `more`: others may yet come or get ready. When none can, and no version fills the batch, it is filled as it is."""
        counts = self.ready.counts(loaded)
        begun = self.batch[min(self.batch)] if self.batch else None  # any of them, but after a restart the same
        if begun is not None:
            version = int(self._store.groups.version[begun])
            if counts.get(version, 0) >= at_least:
                return self._even(self._chosen(self.picker.pop_version(version, limit, loaded)), limit, at_least)
        else:
            for version, count in counts.items():
                if count >= left:
                    return self._chosen(self.picker.pop_version(version, limit, loaded))
        if more or sum(counts.values()) < at_least:
            return np.zeros(0, dtype=np.int64)
        return self._chosen(self.picker.pop_mixed(limit, loaded))

    def _even(self, slots: np.ndarray, wanted: int, at_least: int) -> np.ndarray:
        """Of fewer groups than were wanted as many as all ranks can have alike; none of fewer than `at_least`. The newest of them are ready again."""
        keep = len(slots) if len(slots) == wanted else len(slots) - len(slots) % max(1, self.picker.plan.ranks)
        keep = keep if keep >= at_least else 0
        if keep < len(slots):
            self.put_back(slots[keep:])
        return slots[:keep]

    def _chosen(self, slots: np.ndarray) -> np.ndarray:
        table = self._store.groups
        table.queued[slots, self.number], table.leased[slots, self.number] = False, True
        self.outside.remove_all(table.version[slots])
        self.batch.update(zip(table.gid[slots].tolist(), slots.tolist(), strict=True))
        return slots

    def put_back(self, slots: np.ndarray) -> None:
        """Groups of the batch are ready again."""
        table = self._store.groups
        for gid in table.gid[slots].tolist():
            del self.batch[gid]
        self.outside.add_all(table.version[slots])
        table.queued[slots, self.number], table.leased[slots, self.number] = True, False
        self.ready.add(keys_of(table.gid[slots], 0), slots, table.version[slots], table.newest[slots])

    def reversion(self, slots: np.ndarray, versions: np.ndarray) -> None:
        """The groups get other versions; call before those of the table change."""
        table = self._store.groups
        outside = self._outside(slots)
        self.outside.remove_all(table.version[slots[outside]])
        self.outside.add_all(versions[outside])

    def forget(self, slots: np.ndarray) -> None:
        """The groups end: they leave the batch, or what is outside of it."""
        outside = self._outside(slots)
        for gid in self._store.groups.gid[slots[~outside]].tolist():
            self.batch.pop(gid, None)
        self.outside.remove_all(self._store.groups.version[slots[outside]])

    def _outside(self, slots: np.ndarray) -> np.ndarray:
        """[n] bool: neither in the batch nor acknowledged."""
        table = self._store.groups
        return ~(table.leased[slots, self.number] | table.acked[slots, self.number])

    def freeze(self) -> FrozenTerminal:
        return FrozenTerminal(self.epochs, self.trained)

    def thaw(self, frozen: FrozenTerminal) -> None:
        """After the tables."""
        table, slots = self._store.groups, self._store.all()
        self.epochs, self.trained = frozen.epochs, frozen.trained
        leased = slots[table.leased[slots, self.number]]
        self.batch = dict(zip(table.gid[leased].tolist(), leased.tolist(), strict=True))
        self.outside.add_all(table.version[slots[self._outside(slots)]])

    def commit(self, epoch: int) -> np.ndarray:
        """Acknowledge the batch; returns its groups (slots) in canonical order."""
        slots = np.array([self.batch[gid] for gid in sorted(self.batch)], dtype=np.int64)
        self.batch.clear()
        self._store.groups.acked[slots, self.number] = True
        self._store.groups.leased[slots, self.number] = False
        self.trained += len(slots)
        self.epochs.append(epoch)
        return slots
