"""Saving the whole queue while it works, and loading it into an empty one: what a saver and a loader say, who are members like others.

The state travels in pieces, bytes of `controller.image`; tensor bytes go between them and the shards.
"""

from __future__ import annotations

from transfer_queue.messages.base import Reply, Request

PIECE_BYTES = 16 << 20  # of a state, in one message


class Save(Request, frozen=True):
    """Freeze the state as it is now, and hold every block that it names, until `EndSave` or the member's end. One at a time for each member."""

    member: str
    incarnation: int


class OkSave(Reply, frozen=True):
    image: int  # for ReadImage
    nbytes: int  # of the image


class ReadImage(Request, frozen=True):
    """At most PIECE_BYTES of a frozen state. It changes nothing, and may be asked again."""

    image: int
    start: int


class OkImage(Reply, frozen=True):
    data: bytes


class EndSave(Request, frozen=True):
    """Everything is read, or nothing more will be: blocks that ended meanwhile are freed."""

    member: str
    incarnation: int


class LoadPart(Request, frozen=True):
    """The next piece of a state that is to be loaded, `start` bytes behind its beginning; the first one makes away with what was begun before."""

    member: str
    incarnation: int
    start: int
    data: bytes


class Load(Request, frozen=True):
    """All pieces are there: the topics, which must be empty, become what they were. All or nothing."""

    member: str
    incarnation: int
    nbytes: int
