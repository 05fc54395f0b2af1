"""Where bytes are, and which weights made them."""

from __future__ import annotations

from transfer_queue.messages.base import Record


class Slice(Record, frozen=True, array_like=True, gc=False):
    """One row's values of one column inside a shard: bytes [start, stop) of the extent that `block` is a part of."""

    shard: int
    block: int  # unique for ever within its shard
    start: int
    stop: int


class ModelVersion(Record, frozen=True, array_like=True):
    """Identity of weights as the queue sees it; ordered by (epoch, version)."""

    model: str
    epoch: int
    version: int
    digest: str = ""
