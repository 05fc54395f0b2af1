"""Reads a run's files as they are: of a run in progress, of one that was killed in the middle of a line, of one whose disk was full.

Nothing in here raises for what a file holds. What cannot be read is counted, and the page says so.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

Record = TypeVar("Record")
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # the last: brackets nested thousandfold
LINE_BOUND = 64 << 20  # bytes: no record is as long; a file of one endless line must not fill the memory


def refuse_other_kind(path: Path) -> None:
    """Raises OSError for a pipe or a device, which would be waited for or read for ever."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "no regular file", str(path))


class Lines(Generic[Record]):
    """Whole, valid lines of one file as records, in order. After the walk, `note` says what was left out."""

    def __init__(self, path: Path, kind: type[Record]) -> None:
        self._path, self._decoder = path, msgspec.json.Decoder(kind)
        self.read = self.unreadable = 0
        self.cut = False  # the last line has no end
        self.error: str | None = None

    def __iter__(self) -> Iterator[Record]:
        try:
            refuse_other_kind(self._path)
            with self._path.open("rb") as file:
                while line := file.readline(LINE_BOUND):
                    yield from self._record(line)
        except FileNotFoundError:
            self.error = "there is none"
        except OSError as error:
            self.error = f"not read ({error.strerror or error})"

    def _record(self, line: bytes) -> Iterator[Record]:
        if not line.endswith(b"\n"):
            self.cut = True  # its writer was killed, or is just writing it
            return
        try:
            record = self._decoder.decode(line)
        except UNREADABLE:
            self.unreadable += 1
            return
        self.read += 1
        yield record

    @property
    def note(self) -> str:
        """"" where every line was read."""
        if self.error is not None:
            return f"{self._path.name}: {self.error}"
        parts = [f"{self.unreadable} lines could not be read and are left out"] if self.unreadable else []
        parts += ["the last line is cut off and left out"] if self.cut else []
        return f"{self._path.name}: {'; '.join(parts)}" if parts else ""


class Whole(Generic[Record]):
    """A file that holds one record. `value` is None where it is missing or cannot be read; `note` tells which."""

    def __init__(self, path: Path, kind: type[Record]) -> None:
        self.value: Record | None = None
        self.note = ""
        self.missing = False
        try:
            refuse_other_kind(path)
            self.value = msgspec.json.decode(path.read_bytes(), type=kind)
        except FileNotFoundError:
            self.missing = True
        except OSError as error:
            self.note = f"{path.name}: not read ({error.strerror or error})"
        except UNREADABLE as error:
            self.note = f"{path.name}: cannot be read ({error})"
