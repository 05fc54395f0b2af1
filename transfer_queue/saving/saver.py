"""Save a queue that works: its state as it is at one moment, and every byte that this state names, which the controller holds until they are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from transfer_queue import messages as m
from transfer_queue.client import QueueClient
from transfer_queue.controller.image import decoded
from transfer_queue.errors import Gone
from transfer_queue.pending import Pending
from transfer_queue.saving.folder import Writing
from transfer_queue.saving.member import joined
from transfer_queue.saving.places import Named, chunks
from transfer_queue.security import Security
from transfer_queue.shard import messages as sm

UNDER_WAY = 8  # chunks without an answer


class Saved(m.Record, frozen=True):
    """What a folder holds."""

    groups: int
    prompts: int
    nbytes: int  # of columns
    keys: int  # of keyed partitions


def save(
    url: str,
    folder: Path,
    security: Security | None = None,
    timeout_s: float = 30.0,
    replace: bool = False,
    metadata: bytes | None = None,
) -> Saved:
    """All or nothing. `replace` a folder that is there, which stays as it is until the new one is whole; `metadata` is JSON that goes with it.

    Raises FileExistsError, OSError, QueueError, QueueTimeout, QueueGone, and Gone if a shard ended meanwhile."""
    with Writing(folder, replace) as writing, joined(url, "saver", security, timeout_s) as client:
        reply: m.OkSave = client.call(m.Save(member="", incarnation=0), timeout_s)
        state = b"".join(_state(client, reply))
        named = Named(decoded(state))
        for chunk in _read(client, named.places):
            writing.add(chunk)
        writing.finish(state, metadata)
    image = decoded(state)
    topics, partitions = image.topics.values(), image.keyed.values()
    groups = sum(topic.store.groups.used - len(topic.store.groups.vacant) for topic in topics)
    return Saved(groups, sum(len(topic.prompts.waiting) for topic in topics), named.nbytes, sum(len(partition.keys) for partition in partitions))


def _state(client: QueueClient, image: m.OkSave) -> Iterator[bytes]:
    start = 0
    while start < image.nbytes:
        piece: m.OkImage = client.call(m.ReadImage(image=image.image, start=start), client.timeout_s)
        yield piece.data
        start += len(piece.data)


def _read(client: QueueClient, places: np.ndarray) -> Iterator[memoryview]:
    waiting: deque[tuple[np.ndarray, Pending[Any]]] = deque()
    for chunk in chunks(places):
        if len(waiting) == UNDER_WAY:
            yield _taken(*waiting.popleft(), client.timeout_s)
        waiting.append((chunk, client.ask_shard(int(chunk[0, 0]), sm.Read(columns=[_ranges(chunk)]))))
    while waiting:
        yield _taken(*waiting.popleft(), client.timeout_s)


def _ranges(chunk: np.ndarray) -> sm.Ranges:
    """Neighbours in a block are one range."""
    filled = chunk[chunk[:, 2] < chunk[:, 3]]
    begins = np.ones(len(filled), dtype=bool)
    begins[1:] = (filled[1:, 1] != filled[:-1, 1]) | (filled[1:, 2] != filled[:-1, 3])
    ends = np.roll(begins, -1)
    return sm.Ranges(blocks=filled[begins, 1].tolist(), starts=filled[begins, 2].tolist(), stops=filled[ends, 3].tolist())


def _taken(chunk: np.ndarray, pending: Pending[Any], timeout_s: float) -> memoryview:
    reply, frames = pending.result(timeout_s)
    if isinstance(reply, sm.NotFound):
        raise Gone(reply.gone)
    found = memoryview(frames[0])
    asked = int((chunk[:, 3] - chunk[:, 2]).sum())
    if len(found) != asked:
        raise ValueError(f"shard {chunk[0, 0]} sent {len(found)} bytes, {asked} were asked for")
    return found
