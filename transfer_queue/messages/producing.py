"""Prompts in, admission, rows out: what the source and the rollouts say."""

from __future__ import annotations

from transfer_queue.messages.base import Record, Reply, Request
from transfer_queue.messages.places import Slice
from transfer_queue.messages.rows import PutBatch, unpacked


class PromptPut(Record, frozen=True):
    """One prompt: becomes the group `gid` when it is handed out. `columns` are the group's shared columns."""

    gid: int  # position in the source's endless order (epoch * len(data) + index): unique, dense, the canonical order
    columns: dict[str, Slice]
    rows: int | None = None  # trajectories wanted; None: the topic's rows_per_group


class PutPrompts(Request, frozen=True):
    """Idempotent by gid. Parks while `prompts_bound` prompts wait. The cursor is stored with the put, atomically."""

    topic: str
    member: str
    incarnation: int
    prompts: list[PromptPut]
    cursor: int  # the next gid the source would put: where a restarted source goes on
    wait_s: float = 30.0


class OkPrompts(Reply, frozen=True):
    accepted: int  # how many of the put were new
    cursor: int  # the stored cursor, which is the larger one


class Demand(Request, frozen=True):
    """Source: parks until more prompts are wanted or the topic is done."""

    topic: str
    member: str
    incarnation: int
    wait_s: float = 30.0


class OkDemand(Reply, frozen=True):
    wanted: int  # prompts that may be put now; 0 after wait_s
    cursor: int
    done: bool  # the topic's count is trained or the run stops


class ClosePrompts(Request, frozen=True):
    """The run's total: `count` groups are to be trained. Replacements of dropped groups come on top. Idempotent."""

    topic: str
    count: int


class Pull(Request, frozen=True):
    """Rollout: admission is this hand-out. Parks until a permit, bytes and a prompt with min_version <= `loaded` are there. To weights of a history
    that was rolled back nothing is handed out."""

    topic: str
    member: str
    incarnation: int
    loaded: int
    limit: int  # most groups; at most what the replica can start now
    wait_s: float = 30.0
    epoch: int | None = None  # of `loaded`; None: the one in which this version was made


class GroupLease(Record, frozen=True):
    gid: int
    fence: int  # goes with every later message about this attempt
    min_version: int  # no token of it may be made by older weights
    rows: list[int]  # samples still missing (a reissue keeps those that were put)
    columns: dict[str, Slice]  # the group's shared columns
    left: Slice | None = None  # what an attempt before this one handed back (`HandBack`): go on from there
    epoch: int = 0  # of the weights of `min_version`: older are those of a smaller (epoch, version)


class OkPulled(Reply, frozen=True):
    groups: list[GroupLease]
    done: bool = False  # nothing will ever come again
    need_version: int | None = None  # admission waits for a replica with at least this loaded


class ProgressItem(Record, frozen=True, array_like=True):
    gid: int
    fence: int
    tokens: int  # generated so far by this attempt
    oldest_version: int | None  # of this attempt's surviving tokens; before the first that of the weights which will make it, or None


class Progress(Request, frozen=True):
    """Renews generation leases by progress: an item whose `tokens` did not grow does not renew its lease."""

    topic: str
    member: str
    incarnation: int
    items: list[ProgressItem]


class OkProgress(Reply, frozen=True):
    closed: list[int]  # gids that are dropped or no longer yours: abort them


class HandedBack(Record, frozen=True, array_like=True):
    gid: int
    fence: int
    tokens: int  # that this attempt has made so far, as in `ProgressItem`; not those that came with it
    oldest_version: int  # of the tokens in `left`; anything without any
    newest_version: int
    left: Slice | None  # what there is of unfinished rows, in bytes that only producers understand; None where there is nothing
    epochs: dict[int, tuple[int, int]] = {}  # epoch → oldest and newest version of its weights among these tokens; {}: those that made the versions


class HandBack(Request, frozen=True):
    """A holder ends its attempts, and what it has of their unfinished rows is kept: whoever pulls the groups next goes on from there, with weights at
    least as new as the newest of these tokens. Tokens of a history that was rolled back are not kept: their group starts anew. Atomic per group; rows
    of them that are on their way are to be put before."""

    topic: str
    member: str
    incarnation: int
    groups: list[HandedBack]


class OkHandedBack(Reply, frozen=True):
    closed: list[int]  # gids that are dropped or no longer yours. Counted, never an error
    kept: list[int] = []  # gids that are still yours: the run drains, and nobody else would go on with them


class PutRows(Request, frozen=True):
    """Publish rows and close groups, atomically per group. Late or fenced groups come back in `closed`; their bytes are freed."""

    topic: str
    member: str
    incarnation: int
    rows: PutBatch
    close: dict[int, int] = {}  # gid -> row count: the producer closes the group


class OkPut(Reply, frozen=True):
    closed: list[int]  # gids refused: late, dropped or fenced. Counted, never an error


class Put(Request, frozen=True):
    """Whole groups at once, by a producer that needs no prompts: the controller numbers them, admits them, takes their rows and closes them. Parks
    while the window or the byte budget has no room for all of them."""

    topic: str
    member: str
    incarnation: int
    token: int  # the sender's name for this put: a repeat under the same one stores nothing and gets the same reply
    groups: int  # G
    rows_per_group: int  # R = G * rows_per_group rows, those of a group adjacent
    columns: dict[str, bytes]  # places: [R, 4] each, of shared columns [G, 4]
    gids: bytes = b""  # [G] int64, never put before; empty: the controller counts on
    tokens: bytes = b""  # [R] int64, for the record; empty: not counted
    version: int | None = None  # of the weights that made them; None: the committed one
    wait_s: float = 30.0


class OkStored(Reply, frozen=True):
    gids: bytes = b""  # [G] int64; empty: no room within wait_s, and nothing was stored
    done: bool = False  # the topic is over, or the run stops

    @property
    def groups(self) -> list[int]:
        """The same as numbers."""
        return unpacked(self.gids).tolist()


class DropGroups(Request, frozen=True):
    """A holder gives groups up for good (a reward that timed out, a prompt too long). Counted under `reason`."""

    topic: str
    member: str
    incarnation: int
    gids: list[int]
    reason: str
