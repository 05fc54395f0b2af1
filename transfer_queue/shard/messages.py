"""Every record on a shard's socket: headers; the bytes themselves follow as plain frames.

Requests from clients get exactly one reply. `Free`, `Sweep` and `Release` get none: their senders go on.
Offsets are bytes: a shard knows no dtypes, topics, groups or rows. It knows extents, which one write got, and their blocks, one a group.
"""

from __future__ import annotations

import msgspec

from shared_arena import Descriptor

FILL_BYTES = 4 << 20  # most bytes of one Fill: the shard copies one chunk while its socket takes in the next
INLINE_BYTES = 256 << 10  # up to so many bytes a Write costs less than a Reserve and a copy
MOST_FRAME_BYTES = 16 << 20  # a frame that claims more ends its connection before it is allocated
MOST_BLOCKS = 1 << 20  # pieces (groups × columns) of one write
LIFE_BITS = 40  # numbers of blocks begin at the shard's incarnation << LIFE_BITS: those of another life of it are never mistaken for them
FREED, SWEPT = "freed", "swept"  # in the heartbeat of a shard: the `upto` of the last Free and Sweep that came from the controller


class Ranges(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Bytes [starts[i], stops[i]) of the extent of blocks[i], i in order: together one column of a read. A range keeps to what is its block's."""

    blocks: list[int]
    starts: list[int]
    stops: list[int]


class ShardRequest(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True, kw_only=True):
    id: int = 0  # unique within the client's connection


class Describe(ShardRequest, frozen=True):
    """Where the shard's memory is. → Described."""


class Join(ShardRequest, frozen=True):
    """This connection maps the arena: it may hold blocks, until it releases them or its process is gone. → Joined.

    `pid` is the process as the /proc sees it through which the descriptor was opened. `pid_namespace_ok` = False: it is another process there, so
    the holds end with the `Sweep` of `owner` only.
    """

    owner: str
    pid: int
    pid_namespace_ok: bool = True


class Reserve(ShardRequest, frozen=True):
    """Room for C columns, column c cut at `cuts[c]` = [0, …, its bytes] into one piece a group. → Reserved. See `extents.plan` for the layout."""

    owner: str  # "name#incarnation": who answers for the blocks until the controller knows them
    cuts: list[list[int]]


class ReserveAhead(ShardRequest, frozen=True):
    """A region for small puts to come, which this connection writes by itself; after Join only. → ReservedAhead. See `shard.region`."""

    owner: str


class Seal(ShardRequest, frozen=True):
    """The sender writes no more into this region of its own; None: into none. No reply."""

    region: int | None = None


class Fill(ShardRequest, frozen=True):
    """The one frame that follows, at most FILL_BYTES, becomes bytes [start, start + its length) of the extent of `block`, its first. → Filled."""

    owner: str
    block: int
    start: int


class Write(ShardRequest, frozen=True):
    """Reserve and fill in one round trip, for small ones: the C frames that follow are the columns. → Written."""

    owner: str
    cuts: list[list[int]]


class Read(ShardRequest, frozen=True):
    """→ Found: one frame a column, `columns[c]` concatenated in order; or NotFound."""

    columns: list[Ranges]


class Hold(ShardRequest, frozen=True):
    """`blocks` stay as they are until this hold is released, whoever frees them. After Join only. → Held; or NotFound, and nothing is held."""

    blocks: list[int]


class Release(ShardRequest, frozen=True):
    """Holds of this connection end; unknown ones are ignored. No reply."""

    holds: list[int]


class Free(ShardRequest, frozen=True):
    """Blocks go; unknown ones are ignored, so that a repeat does no harm. No reply."""

    blocks: list[int]
    upto: int = 0  # of the controller: how many blocks it told this shard to free, these included; the shard says what it has seen by its heartbeat


class Sweep(ShardRequest, frozen=True):
    """`owner` ended: its blocks go, except `keep` (published ones). Later writes of this incarnation are refused. No reply."""

    owner: str
    keep: list[int]
    upto: int = 0  # how many ended owners this shard was told of, this one included; as of `Free`


class ShardStatus(ShardRequest, frozen=True):
    """Counts of what is stored."""


class ShardReply(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    id: int = 0  # the request it answers; -1 where the request could not be decoded that far


class Described(ShardReply, frozen=True):
    descriptor: Descriptor | None  # None where memory has no descriptor: everything goes by bytes
    arena_bytes: int  # room for extents; only what is written to takes memory
    capacity_bytes: int  # most bytes that are stored


class Joined(ShardReply, frozen=True):
    pass


class Reserved(ShardReply, frozen=True):
    first: int  # group g is block first + g
    offset: int  # where the extent begins in the arena


class ReservedAhead(ShardReply, frozen=True):
    region: int
    begin: int  # in the arena


class Filled(ShardReply, frozen=True):
    pass


class Written(ShardReply, frozen=True):
    first: int  # group g is block first + g


class Found(ShardReply, frozen=True):
    """Frames follow, one a column."""


class Held(ShardReply, frozen=True):
    hold: int
    offsets: list[int]  # for each block: where its extent begins in the arena


class NotFound(ShardReply, frozen=True):
    gone: list[int]  # blocks that were freed or never existed


class ShardStatusReply(ShardReply, frozen=True):
    blocks: int
    used_bytes: int  # of blocks, as asked for
    capacity_bytes: int
    owners: dict[str, int]  # owner -> bytes
    held_bytes: int = 0  # of freed blocks that somebody still reads, or a stray writer may still write to
    idle_bytes: int = 0  # free, kept warm: pages of them are there
    extents: int = 0
    ahead_bytes: int = 0  # room that writers reserved ahead and have not used
    resident_bytes: int | None = None  # memory that the arena takes; None where the system does not tell


class ShardError(ShardReply, frozen=True):
    code: str  # "malformed" | "bad_request" | "capacity" | "draining" | "stale_owner" | "too_many" | "internal"
    message: str


AnyShardRequest = Describe | Join | Reserve | ReserveAhead | Seal | Fill | Write | Read | Hold | Release | Free | Sweep | ShardStatus
AnyShardReply = Described | Joined | Reserved | ReservedAhead | Filled | Written | Found | Held | NotFound | ShardStatusReply | ShardError
