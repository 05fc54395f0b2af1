"""Interrupted state on its way from one replica to another: what a group has of rows that are not finished, as bytes that the queue keeps unread."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

Epochs = dict[int, tuple[int, int]]
"""Epoch → oldest and newest version of the weights of that epoch which made some of the tokens."""


class Unfinished(msgspec.Struct, array_like=True, frozen=True):
    """One row: token ids as sampled, their log-probabilities, the version of the weights that made each, and the epochs of these. n >= 1 tokens."""

    row: int
    token_ids: bytes  # [n] int32
    logprobs: bytes  # [n] float32
    versions: bytes  # [n] int32
    epochs: Epochs


Tokens = tuple[list[int], list[float], list[int], Epochs]  # token ids, log-probabilities, versions: one each a token; epochs


def add_made(epochs: Epochs, epoch: int, low: int, high: int) -> None:
    """Versions `low` to `high` of an epoch made tokens too."""
    before = epochs.get(epoch, (low, high))
    epochs[epoch] = (min(low, before[0]), max(high, before[1]))


def encode(rows: Iterable[tuple[int, Tokens]]) -> bytes:
    """(row, its tokens); rows without any are left out. Nothing left: b""."""
    kept = [
        Unfinished(row, np.array(ids, "<i4").tobytes(), np.array(logprobs, "<f4").tobytes(), np.array(versions, "<i4").tobytes(), epochs)
        for row, (ids, logprobs, versions, epochs) in rows
        if ids
    ]
    return msgspec.msgpack.encode(kept) if kept else b""


def decode(data: bytes) -> dict[int, Tokens]:
    """By row. Raises ValueError for what is none of ours."""
    found = {}
    for kept in msgspec.msgpack.decode(data, type=list[Unfinished]) if data else ():
        columns = [np.frombuffer(kept.token_ids, "<i4"), np.frombuffer(kept.logprobs, "<f4"), np.frombuffer(kept.versions, "<i4")]
        if len({len(column) for column in columns}) > 1:
            counts = [len(column) for column in columns]
            raise ValueError(f"row {kept.row} was handed back with {counts} token ids, log-probabilities, versions: one each is needed")
        found[kept.row] = (columns[0].tolist(), columns[1].tolist(), columns[2].tolist(), kept.epochs)
    return found
