"""Which bytes an image names, each once and in order, and the same image with other names for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec
import numpy as np

from transfer_queue.controller.freezing import FrozenTopic
from transfer_queue.controller.image import Image
from transfer_queue.controller.keyed.freezing import FrozenPartition
from transfer_queue.controller.replays import FrozenReplays
from transfer_queue.controller.tables import FrozenRows, FrozenTable
from transfer_queue.messages import PromptPut, Slice

T = TypeVar("T", FrozenRows, FrozenTable)
CHUNK_BYTES = 4 << 20  # of what is read, kept and written at once, but for a single place that is longer


class Named:
    """`places`: [n, 4] int64, (shard, block, start, stop), ascending."""

    def __init__(self, image: Image) -> None:
        self._image = image
        tables = [table for topic in image.topics.values() for table in _tables(topic)]
        tables += [cells.places for partition in image.keyed.values() for cells in partition.columns.values()]
        self._lengths = [len(table) for table in tables]
        everything = np.concatenate([np.zeros((0, 4), dtype=np.int64), *tables])
        self._there = everything[:, 0] >= 0
        self.places, self._which = np.unique(everything[self._there], axis=0, return_inverse=True)

    @property
    def nbytes(self) -> int:
        return int((self.places[:, 3] - self.places[:, 2]).sum())

    def renamed(self, places: np.ndarray) -> Image:
        """The image, with `places` instead of `self.places`."""
        everything = np.empty((len(self._there), 4), dtype=np.int64)
        everything[self._there] = places[self._which.reshape(-1)]
        everything[~self._there] = (-1, 0, 0, 0)
        tables = iter(np.split(everything, np.cumsum(self._lengths)[:-1]))
        topics = {name: _with(topic, tables) for name, topic in self._image.topics.items()}
        keyed = {name: _moved(partition, tables) for name, partition in self._image.keyed.items()}
        return msgspec.structs.replace(self._image, topics=topics, keyed=keyed)


def _tables(topic: FrozenTopic) -> Iterator[np.ndarray]:
    """[n, 4] each: of rows, of groups, of groups to be replayed, of prompts that wait."""
    tables: tuple[FrozenRows, FrozenTable] = (topic.store.rows, topic.store.groups)
    for table in tables:
        yield table.columns["places"][table.slots()].reshape(-1, 4)
    for replays in topic.replays.values():
        yield replays.kept.places.reshape(-1, 4)
    pieces = [(piece.shard, piece.block, piece.start, piece.stop) for prompt, _ in topic.prompts.waiting for piece in prompt.columns.values()]
    yield np.array(pieces, dtype=np.int64).reshape(-1, 4)


def _with(topic: FrozenTopic, tables: Iterator[np.ndarray]) -> FrozenTopic:
    """The same topic with these tables."""
    rows, groups = _placed(topic.store.rows, next(tables)), _placed(topic.store.groups, next(tables))
    replays = {number: _kept(each, next(tables)) for number, each in topic.replays.items()}
    pieces = iter(next(tables).tolist())
    waiting = [(_prompt(prompt, pieces), life) for prompt, life in topic.prompts.waiting]
    store = msgspec.structs.replace(topic.store, rows=rows, groups=groups)
    return msgspec.structs.replace(topic, store=store, replays=replays, prompts=msgspec.structs.replace(topic.prompts, waiting=waiting))


def _moved(partition: FrozenPartition, tables: Iterator[np.ndarray]) -> FrozenPartition:
    """The same partition with these tables."""
    columns = {name: msgspec.structs.replace(cells, places=next(tables)) for name, cells in partition.columns.items()}
    return msgspec.structs.replace(partition, columns=columns)


def _prompt(prompt: PromptPut, pieces: Iterator[list[int]]) -> PromptPut:
    return msgspec.structs.replace(prompt, columns={name: Slice(*next(pieces)) for name in prompt.columns})


def _placed(table: T, places: np.ndarray) -> T:
    column = table.columns["places"].copy()
    slots = table.slots()
    column[slots] = places.reshape(len(slots), *column.shape[1:])
    return msgspec.structs.replace(table, columns={**table.columns, "places": column})


def _kept(replays: FrozenReplays, places: np.ndarray) -> FrozenReplays:
    kept = msgspec.structs.replace(replays.kept, places=places.reshape(replays.kept.places.shape))
    return msgspec.structs.replace(replays, kept=kept)


def chunks(places: np.ndarray) -> Iterator[np.ndarray]:
    """Parts of `places`, in order, each of one shard and of about CHUNK_BYTES at most."""
    shards, sizes = places[:, 0], places[:, 3] - places[:, 2]
    begin, nbytes = 0, 0
    for end in range(len(places)):
        if end > begin and (shards[end] != shards[begin] or nbytes + sizes[end] > CHUNK_BYTES):
            yield places[begin:end]
            begin, nbytes = end, 0
        nbytes += int(sizes[end])
    if begin < len(places):
        yield places[begin:]
