"""What the processes of a soak write down, line by line, so that it is there when they are killed: a file for each life of each process.

Times are `time.monotonic`, which all processes of a machine share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.soak.content import Key


class Record(msgspec.Struct, tag=True, kw_only=True):
    t: float = 0.0  # when it was written


class Tried(Record):
    """A writer is about to put `groups` groups from `serial` on."""

    serial: int
    groups: int


class Acknowledged(Record):
    """The put of these came back: the group of `serial + i` is `gids[i]`."""

    serial: int
    gids: list[int]


class Prompted(Record):
    """The source is about to put the prompts [first, end)."""

    first: int
    end: int


class Pulled(Record):
    gids: list[int]


class Graded(Record):
    """These rows (gid, row) were written back, and the controller took them."""

    rows: list[tuple[int, int]]


class Batch(Record):
    """A trainer is about to commit this step with these rows (gid, row, key), each of which it has read and compared."""

    step: int
    rows: list[tuple[int, int, Key]]


class Committed(Record):
    step: int
    version: int


class GaveUp(Record):
    """A trainer could not read these groups of its batch: their shard was lost."""

    gids: list[int]


class Hiccup(Record):
    """A call that failed because a server was gone, and is made again."""

    error: str


class Wrong(Record):
    """What must not be: other bytes than were put, an answer that is none."""

    what: str


class Fuzzed(Record):
    """So much nonsense was sent so far, and how it was answered."""

    sent: dict[str, int]
    answers: dict[str, int]
    slowest_s: float  # from the end of a burst to the answer of a server that was not killed meanwhile


AnyRecord = Tried | Acknowledged | Prompted | Pulled | Graded | Batch | Committed | GaveUp | Hiccup | Wrong | Fuzzed
_DECODER = msgspec.json.Decoder(AnyRecord)


class Recorder:
    def __init__(self, folder: Path, name: str, life: int) -> None:
        self._descriptor = os.open(folder / f"{name}.{life:05d}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)

    def __call__(self, record: Record) -> None:
        record.t = time.monotonic()
        os.write(self._descriptor, msgspec.json.encode(record) + b"\n")  # one call: the kernel has all of it when the process is killed


def read(folder: Path) -> Iterator[tuple[str, int, AnyRecord]]:
    """(process, life, record) in the order of each process's lives. A last line that a kill cut off counts as not written."""
    for file in sorted(folder.iterdir()):
        name, _, life = file.name.rpartition(".")
        *lines, _ = file.read_bytes().split(b"\n")
        for line in lines:
            yield name, int(life), _DECODER.decode(line)
