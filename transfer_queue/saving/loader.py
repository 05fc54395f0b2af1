"""Load a saved queue into an empty one: bytes to its shards, however many, then the state with their new places, in one step."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from transfer_queue import messages as m
from transfer_queue.client import QueueClient
from transfer_queue.columns import Jagged
from transfer_queue.controller.freezing import FrozenTopic
from transfer_queue.controller.image import Image, decoded
from transfer_queue.frozen import to_bytes
from transfer_queue.saving.folder import Damaged, read_bytes, read_state
from transfer_queue.saving.member import joined
from transfer_queue.saving.places import Named
from transfer_queue.security import Security

COLUMN = "image"  # what pieces of any column are called on their way


def load(url: str, folder: Path, security: Security | None = None, timeout_s: float = 30.0) -> dict[str, int]:
    """All or nothing. Returns the epoch of the last commit by model: whoever goes on publishes under that one or a later one.
    Raises Damaged or FileNotFoundError (folder), QueueError (a queue that is not empty, has other topics, or no room),
    QueueTimeout, QueueGone."""
    named = Named(decoded(read_state(folder)))
    with joined(url, "loader", security, timeout_s) as client:
        image = named.renamed(_write(client, folder, named))
        _hand_over(client, image)
    return {spec.model: _epoch(image.topics[spec.name]) for spec in image.specs}


def _epoch(topic: FrozenTopic) -> int:
    epochs = topic.terminals[min(topic.terminals)].epochs
    return epochs[-1] if epochs else 0


def _write(client: QueueClient, folder: Path, named: Named) -> np.ndarray:
    """Returns where the bytes of `named.places` lie now, [n, 4]."""
    places, found = named.places, [np.zeros((0, 4), dtype=np.int64)]
    ends = np.cumsum(places[:, 3] - places[:, 2])  # in all the bytes, which lie in the order of the places, in chunks as the saver's release cut them
    begin, done = 0, 0
    for body in read_bytes(folder):
        done += len(body)
        end = int(np.searchsorted(ends, done, side="right"))
        if end > begin and ends[end - 1] == done:
            found.append(_put(client, places[begin:end], body))
            begin = end
        elif len(body):
            break
    if begin != len(places) or done != named.nbytes:
        raise Damaged(f"{folder}: `bytes` and `state` are not of one save: nothing was loaded")
    return np.concatenate(found)


def _put(client: QueueClient, chunk: np.ndarray, body: memoryview) -> np.ndarray:
    """Returns where `chunk` lies now."""
    offsets = np.concatenate([[0], np.cumsum(chunk[:, 3] - chunk[:, 2])])
    blocks = np.cumsum(np.diff(chunk[:, 1], prepend=chunk[0, 1]) != 0)  # rows of a group stay together, and go together
    return client.write_places(blocks, {COLUMN: Jagged(np.frombuffer(body, dtype=np.uint8), offsets)})[COLUMN]


def _hand_over(client: QueueClient, image: Image) -> None:
    data = to_bytes(image)
    for start in range(0, len(data), m.PIECE_BYTES):
        part = m.LoadPart(member="", incarnation=0, start=start, data=data[start : start + m.PIECE_BYTES])
        client.call(part, client.timeout_s)
    client.call(m.Load(member="", incarnation=0, nbytes=len(data)), client.timeout_s)
