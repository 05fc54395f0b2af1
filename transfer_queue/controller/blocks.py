"""Which shard blocks are referred to, and how often: memory goes when the last reference goes, and never earlier.

Prompts and groups refer to blocks by the places of their columns. A refused message names blocks too; they are freed unless something refers to them,
so that the repeat of a message never frees what its first copy stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from transfer_queue.controller.errors import RequestError
from transfer_queue.controller.paged import FEW, Paged
from transfer_queue.controller.told import Told
from transfer_queue.messages import Record, Slice

A_LEASE = 8  # places that are looked at one by one: operations on arrays would cost more


class FrozenBlocks(Record, frozen=True):
    """What a snapshot keeps: references follow from what refers."""

    told: dict[int, Told]
    lost: dict[int, int]


def places_of(slices: Iterable[Slice]) -> np.ndarray:
    """[n, 4]"""
    return np.array([(piece.shard, piece.block, piece.start, piece.stop) for piece in slices], dtype=np.int64).reshape(-1, 4)


class Blocks:
    """A place is (shard, block, start, stop); those with a negative shard are NOWHERE and left out."""

    def __init__(self) -> None:
        self._counts: dict[int, Paged] = {}  # shard → block → references
        self.frees: dict[int, list[int]] = {}  # shard → blocks to free, drained by the server
        self.told: dict[int, Told] = {}  # shard → what it has not confirmed
        self.lost: dict[int, int] = {}  # shard that ended once → the blocks below this number went with it

    def hold(self, places: np.ndarray) -> None:
        """One more reference for each of the places, [n, 4] or [rows, columns, 4]."""
        if places.ndim == 2 and len(places) <= A_LEASE:
            self.hold_each([(shard, block) for shard, block, *_ in places.tolist() if shard >= 0])
            return
        for shard, blocks, times in _by_shard(places):
            self._of(shard).add_all(blocks, times)

    def hold_row(self, tables: list[np.ndarray]) -> None:
        """The same of the columns of one row, places [1, 4] each."""
        named = [(table.item(0), table.item(1)) for table in tables]
        if len(named) > 1:
            self.hold_each(block for block in named if block[0] >= 0)
        elif named and named[0][0] >= 0:
            self._of(named[0][0]).add(named[0][1], 1)

    def _of(self, shard: int) -> Paged:
        counts = self._counts.get(shard)
        if counts is None:
            counts = self._counts[shard] = Paged(0)
        return counts

    def hold_each(self, blocks: Iterable[tuple[int, int]]) -> None:
        """The same for a few, one by one: (shard, block) of each place."""
        times: dict[tuple[int, int], int] = {}
        for named in blocks:
            times[named] = times.get(named, 0) + 1
        for (shard, block), count in times.items():
            self._of(shard).add(block, count)

    def release(self, places: np.ndarray) -> None:
        """One reference less for each of the places; blocks without any are freed."""
        if places.size <= 4 * FEW:
            self._release_each(places.reshape(-1, 4).tolist())
            return
        for shard, blocks, times in _by_shard(places):
            counts = self._counts[shard]
            left = counts.add_all(blocks, -times)
            if not counts:
                del self._counts[shard]
            if freed := blocks[left == 0].tolist():
                self._free(shard, freed)

    def _release_each(self, places: list[list[int]]) -> None:
        """The same of a few, one by one."""
        times: dict[int, dict[int, int]] = {}  # shard → block → how often
        for shard, block, *_ in places:
            if shard >= 0:
                mine = times.setdefault(shard, {})
                mine[block] = mine.get(block, 0) + 1
        for shard in sorted(times):
            counts = self._counts[shard]
            freed = [block for block, count in times[shard].items() if not counts.add(block, -count)]
            if not counts:
                del self._counts[shard]
            if freed:
                self._free(shard, freed)

    def refuse(self, places: np.ndarray) -> None:
        """Free the blocks of a refused message that nothing refers to. Call it after every `hold` of the same message."""
        for shard, blocks, _ in _by_shard(places[(places[:, 0] >= 0) & (places[:, 1] >= 0)]):
            counts = self._counts.get(shard)
            free = blocks if counts is None else blocks[counts.get(blocks) == 0]
            if len(free):
                self._free(shard, free.tolist())

    def lose(self, shard: int, before: int) -> None:
        """The shard ended: its blocks below this number are gone, and nothing can be told to it."""
        self.lost[shard] = before
        self.told.pop(shard, None)
        self.frees.pop(shard, None)

    def check(self, tables: Iterable[np.ndarray]) -> None:
        """Raises RequestError for places, [n, 4] each, whose bytes went with their shard: nobody could ever read them."""
        if not self.lost:
            return
        for table in tables:
            gone = self.went(table)
            if gone.any():
                shard, block = table[gone][0, :2]
                message = f"block {block} of shard {shard} went with it when it ended: nothing was stored; write the columns again"
                raise RequestError("shard_lost", message)

    def went(self, places: np.ndarray) -> np.ndarray:
        """[…, 4] → […] bool: whose bytes went with their shard."""
        gone = np.zeros(places.shape[:-1], dtype=bool)
        for shard, before in self.lost.items():
            gone |= (places[..., 0] == shard) & (places[..., 1] < before)
        return gone

    def _free(self, shard: int, blocks: list[int]) -> None:
        if shard in self.lost:
            blocks = [block for block in blocks if block >= self.lost[shard]]
        self.frees.setdefault(shard, []).extend(blocks)
        self._told(shard).free(blocks)

    def _told(self, shard: int) -> Told:
        told = self.told.get(shard)
        if told is None:
            told = self.told[shard] = Told()
        return told

    def swept(self, shards: Iterable[int], owner: str) -> None:
        """These shards are told that `owner` ended."""
        for shard in shards:
            self._told(shard).sweep(owner)

    def freeze(self) -> FrozenBlocks:
        return FrozenBlocks(self.told, self.lost)

    def thaw(self, frozen: FrozenBlocks) -> None:
        self.told, self.lost = frozen.told, frozen.lost

    def all(self) -> np.ndarray:
        """A place in each block that is referred to, [n, 4]: shard and block count, the bytes are none."""
        parts = [np.zeros((0, 4), dtype=np.int64)]
        for shard, counts in self._counts.items():
            blocks = counts.all()
            parts.append(np.zeros((len(blocks), 4), dtype=np.int64))
            parts[-1][:, 0], parts[-1][:, 1] = shard, blocks
        return np.concatenate(parts)

    def live(self, shard: int) -> list[int]:
        return self._counts[shard].keys() if shard in self._counts else []


def _by_shard(places: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray | int]]:
    """(shard, its blocks once each, how often each, or all of them)."""
    times = 1
    if not places.size:
        return
    if places.ndim == 3:  # the columns of a row mostly lie in one block
        if places.shape[1] == 1 or (places[:, 1:, :2] == places[:, :1, :2]).all():
            places, times = places[:, 0], places.shape[1]
        else:
            places = places.reshape(-1, 4)
    shards, blocks = places[:, 0], places[:, 1]
    if len(places) > 1 and (shards != shards[0]).any():
        for shard in np.unique(shards[shards >= 0]).tolist():
            found, counts = _counted(blocks[shards == shard])
            yield shard, found, counts * times
    elif shards[0] >= 0:
        if (blocks[1:] > blocks[:-1]).all():
            yield int(shards[0]), blocks.copy(), times
        else:
            found, counts = _counted(blocks)
            yield int(shards[0]), found, counts * times


def _counted(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(once each, how often)."""
    if len(blocks) > FEW:
        return np.unique(blocks, return_counts=True)
    times: dict[int, int] = {}
    for block in blocks.tolist():
        times[block] = times.get(block, 0) + 1
    return np.array(list(times), dtype=np.int64), np.array(list(times.values()), dtype=np.int64)
