"""`QueueReport`: everything that can be known of a running queue from outside, as one record."""

from __future__ import annotations

from transfer_queue.messages import Record, StallReport, StatusRecord


class ShardStored(Record, frozen=True):
    """What one shard says that it holds."""

    blocks: int
    extents: int
    used_bytes: int  # of blocks, as asked for
    capacity_bytes: int
    held_bytes: int  # freed, but somebody still reads them, or a stray writer may still write to them
    idle_bytes: int  # free, kept warm
    ahead_bytes: int  # room that writers reserved ahead and have not used
    resident_bytes: int | None  # memory that its arena takes; None where the system does not tell
    owners: dict[str, int]  # who stored how much of `used_bytes`


class ShardReport(Record, frozen=True):
    index: int
    endpoint: str
    stored: ShardStored | None  # None: it did not say
    error: str = ""  # why


class QueueReport(Record, frozen=True):
    status: StatusRecord
    shards: list[ShardReport]
    waits: StallReport | None  # None: not asked for
    answer_s: float  # how long the controller took to answer
