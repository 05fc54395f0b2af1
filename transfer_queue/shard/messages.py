"""Every record on a shard's socket: headers; the bytes themselves follow as plain frames, one a column.

Requests from clients get exactly one reply. `Free` and `Sweep` get none: the controller sends them and goes on.
Offsets are bytes: a shard knows no dtypes, topics, groups or rows.
"""

from __future__ import annotations

import msgspec


class Ranges(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Bytes [starts[i], stops[i]) of blocks[i], i in order: together one column of a read."""

    blocks: list[int]
    starts: list[int]
    stops: list[int]


class ShardRequest(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True, kw_only=True):
    id: int = 0  # unique within the client's connection


class Write(ShardRequest, frozen=True):
    """Store the C frames that follow. Frame c is cut at `cuts[c]` = [0, …, len(frame c)] into one block a group."""

    owner: str  # "name#incarnation": who answers for the blocks until the controller knows them
    cuts: list[list[int]]


class Read(ShardRequest, frozen=True):
    """Reply: one frame a column, `columns[c]` concatenated in order; or the list of blocks that are gone."""

    columns: list[Ranges]


class Free(ShardRequest, frozen=True):
    """Blocks go; unknown ones are ignored, so that a repeat does no harm. No reply."""

    blocks: list[int]


class Sweep(ShardRequest, frozen=True):
    """`owner` ended: its blocks go, except `keep` (published ones). Later writes of this incarnation are refused. No reply."""

    owner: str
    keep: list[int]


class ShardStatus(ShardRequest, frozen=True):
    """Counts of what is stored."""


class ShardReply(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    id: int = 0  # the request it answers; -1 where the request could not be decoded that far


class Written(ShardReply, frozen=True):
    """Block of column c and group g has the number first + c * groups + g, groups = len(cuts[c]) - 1."""

    first: int


class Found(ShardReply, frozen=True):
    """Frames follow, one a column."""


class NotFound(ShardReply, frozen=True):
    gone: list[int]  # blocks that were freed or never existed


class ShardStatusReply(ShardReply, frozen=True):
    blocks: int
    used_bytes: int
    capacity_bytes: int
    owners: dict[str, int]  # owner -> bytes


class ShardError(ShardReply, frozen=True):
    code: str  # "malformed" | "bad_request" | "capacity" | "stale_owner" | "internal"
    message: str


AnyShardRequest = Write | Read | Free | Sweep | ShardStatus
AnyShardReply = Written | Found | NotFound | ShardStatusReply | ShardError
