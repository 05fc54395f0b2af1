"""Every record on the publisher's socket, in one place. A trainer and receivers talk to the publisher; nobody else talks to anybody.

`seq` is the asker's number of a question; its answer carries the same one. Records without it are announcements. Units: seconds, bytes.
"""

from __future__ import annotations

import msgspec

from checkpoint_engine.backends import CPU, Device
from checkpoint_engine.manifest import Manifest
from checkpoint_engine.weights_id import WeightsId
from shared_arena import Descriptor

MOST_CHUNK_BYTES = 4 << 20  # of the bytes path: one frame


class ToPublisher(msgspec.Struct, tag=True, forbid_unknown_fields=True, kw_only=True):
    seq: int = 0


# ---------------------------------------------------------------- receivers


class Join(ToPublisher):
    """Here I am; repeated as a sign of life. `collective`: may be a rank of the broadcast group. `device`: what it computes on by now."""

    member: str
    collective: bool
    have: WeightsId | None = None
    device: Device = CPU


class Leave(ToPublisher):
    member: str


class Accept(ToPublisher):
    """Answer to `Invite`: this member is in its receive loop now and will come to the group."""

    member: str
    epoch: int


class Post(ToPublisher):
    """A note for the board of an epoch's group: how this rank is reached."""

    epoch: int
    key: str
    value: bytes


class Look(ToPublisher):
    """Answered with `Found` once the note is there, or not at all when the epoch is over."""

    epoch: int
    key: str


class Done(ToPublisher):
    """A member's part in one broadcast is over. `error` "" or what went wrong; the member then pulls."""

    member: str
    epoch: int
    weights: WeightsId
    error: str = ""


class Pull(ToPublisher):
    """Ask for the newest version and a lease on it."""

    member: str
    lease_s: float


class Fetch(ToPublisher):
    """Bytes of a leased version, where its memory cannot be opened."""

    lease: int
    offset: int
    nbytes: int


class Renew(ToPublisher):
    """Still needed: the lease ends `lease_s` from now, not before and not later. No answer, or `Lapsed` when it is over."""

    lease: int
    lease_s: float


class Release(ToPublisher):
    """No answer. `tainted`: somebody may still read there (a loader past its deadline), so the memory is not written over."""

    lease: int
    tainted: bool = False


# ---------------------------------------------------------------- the trainer


class Reserve(ToPublisher):
    """Ask for a slot; answered when there is one, or with `NoSlot` after `wait_s`."""

    member: str
    weights: WeightsId
    nbytes: int  # expected; the trainer grows the arena where it needs more
    wait_s: float


class Write(ToPublisher):
    """Bytes of a reserved slot (second frame), where its memory cannot be opened."""

    ticket: int
    offset: int


class Commit(ToPublisher):
    """The slot is whole. Digests are the publisher's."""

    ticket: int
    manifest: Manifest


class Discard(ToPublisher):
    """Copying out failed; nothing of the slot is served."""

    ticket: int


class AwaitPublished(ToPublisher):
    """Answered when this or a newer version is published, or with what is after `wait_s`."""

    weights: WeightsId
    wait_s: float


AnyToPublisher = Join | Leave | Accept | Post | Look | Done | Pull | Fetch | Renew | Release | Reserve | Write | Commit | Discard | AwaitPublished


class FromPublisher(msgspec.Struct, tag=True, kw_only=True):
    seq: int = 0


class Available(FromPublisher):
    """Newest published version; sent to who is not in the group, and to all when a broadcast failed. Also the answer to `Join`."""

    weights: WeightsId | None


class Invite(FromPublisher):
    """A group of this epoch is about to form; every older one is over."""

    epoch: int


class Place(msgspec.Struct, array_like=True):
    """Where and how a group meets."""

    host: str  # of the publisher: a member listens on its address towards it
    backend: str
    timeout_s: float  # of one operation


class Form(FromPublisher):
    """Come to the group as `rank` of `world`; its notes are posted and looked up by `epoch`."""

    epoch: int
    rank: int
    world: int
    place: Place


class Found(FromPublisher):
    """Answer to `Look`."""

    value: bytes


class Send(FromPublisher):
    """The group's next operations are this version, in buckets of `bucket_bytes`."""

    epoch: int
    manifest: Manifest
    bucket_bytes: int


class Abandon(FromPublisher):
    """The group of this epoch is over: leave it, pull."""

    epoch: int


class Offer(FromPublisher):
    """Answer to `Pull`: a leased version; read it by `descriptor` if it opens here, else by `Fetch`. Without `manifest`: there is none yet."""

    lease: int = 0
    manifest: Manifest | None = None
    descriptor: Descriptor | None = None


class Lapsed(FromPublisher):
    """The lease is over, by its deadline or a death notice. Its memory is never written again, so what was read there stays whole."""

    lease: int


class Chunk(FromPublisher):
    """Answer to `Fetch`; the bytes are the second frame."""

    offset: int


class Slot(FromPublisher):
    """Answer to `Reserve`. `slots`: nonces of all memory that may be granted again; the trainer keeps it mapped, and nothing else."""

    ticket: int
    descriptor: Descriptor
    slots: tuple[bytes, ...] = ()


class NoSlot(FromPublisher):
    """Answer to `Reserve`: every slot is held; the version stays pending."""


class Ok(FromPublisher):
    """Done."""


class Published(FromPublisher):
    """Answer to `AwaitPublished`."""

    weights: WeightsId | None


class Refused(FromPublisher):
    """The question could not be understood or granted."""

    code: str  # "malformed" | "unknown_lease" | "unknown_ticket" | "bad_request" | "no_memory"
    message: str


AnyFromPublisher = Available | Invite | Form | Found | Send | Abandon | Offer | Lapsed | Chunk | Slot | NoSlot | Ok | Published | Refused
