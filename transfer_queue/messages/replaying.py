"""Groups that a terminal consumer gets again after it has trained them: how that is declared, how they come, what is told of them."""

from __future__ import annotations

from typing import Literal

from transfer_queue.messages.base import Record
from transfer_queue.messages.rows import Rows

Draw = Literal["uniform", "least_replayed"]


class Replay(Record, frozen=True):
    """Up to `groups` groups that were trained before come on top of each batch, never in place of one of its own: permits, clock and ledger do not
    know of them. Checked by `samplers.replay.check_replay` when the controller starts."""

    groups: int  # most that come with one batch
    keep_groups: int  # most that are kept to be drawn from: the newest; 0: none, and nothing is ever replayed
    keep_bytes: int | None = None  # most bytes that they take, set aside from the window's budget_bytes; None: keep_groups × its group_bytes
    order: Draw = "uniform"  # of those kept each as likely; or those first that were replayed least, by lot among them
    seed: int = 0  # of the lots

    @property
    def on(self) -> bool:
        return self.groups > 0 and self.keep_groups > 0

    def set_aside(self, group_bytes: int) -> int:
        """Bytes of the window's budget that admission does not get."""
        if not self.on:
            return 0
        return self.keep_groups * group_bytes if self.keep_bytes is None else self.keep_bytes


class Replayed(Record, frozen=True):
    """What comes on top of the groups of a lease, as a part of it: it is committed, given back and lost with it."""

    rows: Rows = Rows()  # rows of a group adjacent, in row order; columns as those of the lease
    times: bytes = b""  # [R] int64: how often the row's group was replayed before; 0: it was trained, and nothing else

    def __len__(self) -> int:
        """Rows."""
        return len(self.rows)


class ReplayStatus(Record, frozen=True):
    """Groups; all but the first three are counts since the start."""

    kept: int  # now, those included that are leased
    kept_bytes: int  # as they are stored
    leased: int  # in the batch that is being trained
    replayed: int  # came with a batch that was committed; one that came twice counts twice
    evicted: int = 0  # made room for newer ones
    expired: int = 0  # fell out of the staleness window
    lost: int = 0  # went with a shard
    dropped: int = 0  # given up by who had them
    no_room: int = 0  # were trained and not kept: larger than keep_bytes, or everything else was leased
