"""The identity of a set of weights: which model, which history, which version, which bytes."""

from __future__ import annotations

import functools

import msgspec


@functools.total_ordering
class WeightsId(msgspec.Struct, frozen=True, array_like=True):
    """(model, epoch, version, digest), ordered by (epoch, version).

    `version` counts the global batches the trainer has committed; `epoch` grows by one at every trainer recovery, so a rolled-back
    version is never mistaken for an old one. `digest` is the xxh3-128 of the version (see `digest.py`), hex.
    """

    model: str
    epoch: int
    version: int
    digest: str = ""

    def __lt__(self, other: WeightsId) -> bool:
        if self.model != other.model:
            raise ValueError(f"weights of {self.model!r} and {other.model!r} have no order: compare ids of one model only")
        return (self.epoch, self.version) < (other.epoch, other.version)

    def __str__(self) -> str:
        return f"{self.model}@{self.epoch}.{self.version}:{self.digest[:8] or '?'}"
