"""What every process of a loader has to know: which rows of which queue, how many at a time, and under whose name."""

from __future__ import annotations

import os

import msgspec

from transfer_queue.security import Security


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Travels to the worker processes, keys included. Checked when it is made."""

    url: str  # the controller's
    topic: str
    consumer: str
    name: str  # of the members, which have a number behind it: stable over restarts, and unlike that of any other loader that is open
    role: str  # as which they join
    security: Security | None = None
    limit: int = 32  # most units (rows or groups, as the consumer counts) in one lease, which without `max_tokens` is one batch
    at_least: int = 1  # units to wait for before a lease is taken
    max_tokens: int | None = None  # most tokens in a batch; a unit that alone has more is a batch of its own
    token_columns: tuple[str, ...] = ()  # whose values are counted as tokens
    share: tuple[int, int] | None = None  # (rank, ranks): of each step of a terminal consumer take this part; None: whatever comes
    writable: bool = False  # copies of our own instead of views of memory that others read too
    map_memory: bool = True
    timeout_s: float = 30.0  # deadline of a request that a healthy server answers at once

    def __post_init__(self) -> None:
        if not (self.limit >= 1 and 1 <= self.at_least <= self.limit):
            raise ValueError(f"limit={self.limit}, at_least={self.at_least}: 1 <= at_least <= limit must hold, or nothing could ever be taken")
        if (self.max_tokens is None) != (not self.token_columns) or (self.max_tokens is not None and self.max_tokens < 1):
            raise ValueError(
                f"max_tokens={self.max_tokens} and token_columns={list(self.token_columns)} go together, with max_tokens >= 1: a batch is filled by "
                "the values of these columns; name those that hold a row's tokens, each token once"
            )
        if self.share is not None and not 0 <= self.share[0] < self.share[1]:
            raise ValueError(f"share={self.share} is (rank, ranks) with 0 <= rank < ranks: no part of a step would be ours")


def default_name(consumer: str) -> str:
    """One a rank of a distributed run (torch.distributed's, else torchrun's), so that ranks do not take one another's place."""
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return f"{consumer}-{torch.distributed.get_rank()}"
    return f"{consumer}-{os.environ.get('RANK', '0')}"
