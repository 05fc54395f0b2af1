"""Groups after their end: what one consumer read of them, which blocks that keeps alive, and how many bytes these are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from transfer_queue.controller.schema import Schema
from transfer_queue.controller.store import Store
from transfer_queue.controller.tables import LEFT
from transfer_queue.messages import Record, Replayed, Rows, packed


class FrozenKept(Record, frozen=True):
    """What a snapshot keeps of G groups with R rows in all, the oldest first."""

    numbers: np.ndarray  # [G, 5] gid, version, times, bytes, 1 where it is lost
    counts: np.ndarray  # [G] rows
    rows: np.ndarray  # [R, 3] as in Kept
    places: np.ndarray  # [R, I, 4]


@dataclass(slots=True, eq=False)
class Kept:
    """One group of R rows, of which a consumer of I inputs has read everything. The arrays are its own: it keeps nothing of its neighbours."""

    gid: int
    version: int  # of its oldest token
    times: int  # replayed
    nbytes: int  # of its blocks, as the shards store them
    lost: bool  # bytes of it went with their shard while somebody had it
    rows: np.ndarray  # [R, 3] place in the group, version of the oldest token, of the newest
    places: np.ndarray  # [R, I, 4], those of shared columns in each row
    blocks: np.ndarray  # [B, 4] a place in each block that an input lies in, once

    def named_bytes(self) -> int:
        """Of its places, each once: all there is of it after a load."""
        places = np.unique(self.places.reshape(-1, 4), axis=0)
        return int((places[:, 3] - places[:, 2])[places[:, 0] >= 0].sum())


def kept_of(store: Store, schema: Schema, consumer: int, slots: np.ndarray) -> list[Kept]:
    """Of groups (slots) that are about to end."""
    rows, owners = store.rows_of(slots)
    inputs = schema.consumers[consumer].inputs
    columns = [_column(store, schema, name, slots, rows, owners) for name in inputs]
    places = np.stack(columns, axis=1) if columns else np.zeros((len(rows), 0, 4), dtype=np.int64)
    block_owners, blocks, sizes = _blocks(store, schema, inputs, slots, rows, owners)
    turns = np.arange(len(slots) + 1)
    of_rows, of_blocks = np.searchsorted(owners, turns).tolist(), np.searchsorted(block_owners, turns).tolist()
    numbers = np.stack([store.rows.index[rows], store.rows.oldest[rows], store.rows.newest[rows]], axis=1)
    nbytes = np.bincount(block_owners, sizes, len(slots)).astype(np.int64).tolist()
    names = zip(store.groups.gid[slots].tolist(), store.groups.version[slots].tolist(), nbytes, strict=True)
    found = []
    for turn, (gid, version, weight) in enumerate(names):
        mine, its = slice(of_rows[turn], of_rows[turn + 1]), slice(of_blocks[turn], of_blocks[turn + 1])
        found.append(Kept(gid, version, 0, weight, False, numbers[mine].copy(), places[mine].copy(), blocks[its].copy()))
    return found


def _column(store: Store, schema: Schema, name: str, slots: np.ndarray, rows: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """[R, 4]"""
    at = schema.place_of[name]
    return store.groups.places[slots[owners], at] if name in schema.shared else store.rows.places[rows, at]


def _blocks(
    store: Store, schema: Schema, inputs: Sequence[str], slots: np.ndarray, rows: np.ndarray, owners: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(group as its place in `slots`, ascending; a place in it; its bytes) of each block that one of the inputs lies in. A block lives as long as
    anything in it is held, so all of it counts, also columns that nobody reads any more."""
    own, shared = len(schema.per_row_names), len(schema.shared_names)
    places = np.concatenate([store.rows.places[rows].reshape(-1, 4), store.groups.places[slots, :LEFT].reshape(-1, 4)])
    of = np.concatenate([owners.repeat(own), np.arange(len(slots)).repeat(shared)])
    read = np.isin(schema.per_row_names, inputs), np.isin(schema.shared_names, inputs)
    reads = np.concatenate([np.tile(read[0], len(rows)), np.tile(read[1], len(slots))])
    there = places[:, 0] >= 0
    places, of, reads = places[there], of[there], reads[there]
    order = np.lexsort((*places.T[::-1], of))
    places, of, reads = places[order], of[order], reads[order]
    block, place = _begins(of, places[:, :2]), _begins(of, places)
    starts = np.flatnonzero(block)
    sizes = np.add.reduceat(np.where(place, places[:, 3] - places[:, 2], 0), starts) if len(starts) else np.zeros(0, dtype=np.int64)
    holds = np.logical_or.reduceat(reads, starts) if len(starts) else np.zeros(0, dtype=bool)
    first = places[starts[holds]]
    first[:, 2:] = 0
    return of[starts[holds]], first, sizes[holds]


def _begins(of: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """[n] bool: which differ from the one before."""
    begins = np.ones(len(of), dtype=bool)
    begins[1:] = (of[1:] != of[:-1]) | (keys[1:] != keys[:-1]).any(axis=1)
    return begins


def reply_of(groups: Sequence[Kept], inputs: tuple[str, ...]) -> Replayed:
    """As they go to who takes them, the consumer with these inputs."""
    if not groups:
        return Replayed()
    counts = [len(group.rows) for group in groups]
    gids, times = np.repeat([group.gid for group in groups], counts), np.repeat([group.times for group in groups], counts)
    index, oldest, newest = (packed(column) for column in np.concatenate([group.rows for group in groups]).T)
    places = np.concatenate([group.places for group in groups])
    columns = tuple(packed(places[:, at]) for at in range(places.shape[1]))
    return Replayed(Rows(packed(gids), index, oldest, newest, columns, inputs), packed(times))


def freeze(groups: Sequence[Kept], inputs: int) -> FrozenKept:
    """`inputs`: of the consumer."""
    numbers = [(group.gid, group.version, group.times, group.nbytes, int(group.lost)) for group in groups]
    nothing = np.zeros((0, 3), dtype=np.int64), np.zeros((0, inputs, 4), dtype=np.int64)
    return FrozenKept(
        np.array(numbers, dtype=np.int64).reshape(-1, 5),
        np.array([len(group.rows) for group in groups], dtype=np.int64),
        np.concatenate([nothing[0], *(group.rows for group in groups)]),
        np.concatenate([nothing[1], *(group.places for group in groups)]),
    )


def thaw(frozen: FrozenKept) -> Iterator[Kept]:
    """Their blocks are to be held."""
    ends = np.cumsum(frozen.counts)
    for (gid, version, times, nbytes, lost), begin, end in zip(frozen.numbers.tolist(), ends - frozen.counts, ends, strict=True):
        places = frozen.places[begin:end].copy()
        yield Kept(gid, version, times, nbytes, bool(lost), frozen.rows[begin:end].copy(), places, _blocks_named(places))


def _blocks_named(places: np.ndarray) -> np.ndarray:
    """[…, 4] → a place in each block, [B, 4]."""
    named = np.unique(places.reshape(-1, 4)[:, :2], axis=0)
    named = named[named[:, 0] >= 0]
    blocks = np.zeros((len(named), 4), dtype=np.int64)
    blocks[:, :2] = named
    return blocks
