"""Keyed partitions: rows that are found by name. A partition and its keys appear with the first put; columns are declared by nobody, may differ
from row to row, and are overwritten freely. No window, no leases, no clock.

A *cell* is one column of one key. A key has a tag, a dict with str keys as MessagePack. Its *number* is never given twice: what is put by number
after the key was cleared is written nowhere. A request names keys or numbers, not both, and at least one.
"""

from __future__ import annotations

from transfer_queue.messages.base import Kind, Record, Reply, Request

MOST_ROWS = 1 << 20  # of a request
MOST_NAME = 1024  # characters of a key, or of the name of a partition, a column, a task
MOST_MESSAGE_BYTES = 1 << 28  # of one to the controller: it carries references, no bytes; a larger one ends its connection


class CellType(Record, frozen=True, array_like=True, gc=False):
    """What the bytes of a cell are: see `Column`."""

    kind: Kind
    dtype: str
    shape: tuple[int, ...] = ()  # of one value


class Cells(Record, frozen=True):
    """One column of R rows."""

    types: tuple[CellType, ...]  # those that occur
    places: bytes  # [R, 4]
    which: bytes = b""  # [R] which of `types`; b"": all are the first


class KeyedPut(Request, frozen=True):
    """Write cells and merge tags, all or nothing. `keys` that are not there are made, in this order; of `numbers` those that are gone are left out,
    and what was stored for them is freed."""

    partition: str
    member: str
    incarnation: int
    keys: list[str] = []
    numbers: bytes = b""  # [R]
    tags: list[bytes] = []  # one a row, merged into the one before, b"" leaves that; []: none
    columns: dict[str, Cells] = {}


class OkKeyed(Reply, frozen=True):
    numbers: bytes  # [R]; -1: gone, nothing was written
    tags: list[bytes]  # one a row, merged; b"": there is none
    names: list[str]  # columns that all rows have that are there, sorted


class KeyedLook(Request, frozen=True):
    """Where the cells of these rows are; what is not there is left out."""

    partition: str
    member: str
    incarnation: int
    keys: list[str] = []
    numbers: bytes = b""  # [R]
    names: tuple[str, ...] | None = None  # of columns; those that some row lacks are left out. None: all
    tags: bool = False  # with them


class OkLooked(Reply, frozen=True):
    found: bytes  # [F] places in the request, ascending
    numbers: bytes  # [F]
    keys: list[str]  # [F] where numbers were named; else []
    tags: list[bytes]  # [F] where they were asked for
    names: list[str]  # columns that all F rows have, sorted, whether they were asked for or not
    columns: dict[str, Cells]  # of F rows


class KeyedList(Request, frozen=True):
    """Keys and tags of these partitions; None: of all. One that does not exist is left out."""

    member: str
    incarnation: int
    partitions: tuple[str, ...] | None = None


class Listed(Record, frozen=True):
    """A partition's keys in the order in which they were made."""

    keys: list[str]
    tags: list[bytes]  # b"": there is none
    numbers: bytes


class OkListed(Reply, frozen=True):
    partitions: dict[str, Listed]


class KeyedClear(Request, frozen=True):
    """These rows go, with everything; those that are not there count as cleared."""

    partition: str
    member: str
    incarnation: int
    keys: list[str] = []
    numbers: bytes = b""  # [R]


class OkCleared(Reply, frozen=True):
    cleared: int  # rows that were there


class KeyedTake(Request, frozen=True):
    """The next rows that have all these columns and that this task has not had, in the order in which they were made. They count as had at once: no
    lease, so a taker that dies takes them with it."""

    partition: str
    member: str
    incarnation: int
    task: str
    limit: int
    names: tuple[str, ...] = ()
    at_least: int = 1  # none before there are so many; at the deadline none at all
    wait_s: float = 30.0


class OkKeyedTaken(Reply, frozen=True):
    partition: str
    task: str
    keys: list[str] = []
    numbers: bytes = b""
    done: bool = False  # the run was stopped: nothing will come any more


class KeyedEndTask(Request, frozen=True):
    """What this task has had is forgotten, and its place among the tasks of the partition is free. A take under its name begins anew, one that waits
    too. One that is not there is over already."""

    partition: str
    member: str
    incarnation: int
    task: str
