"""New whole lines of a file that somebody else appends to, a bounded piece at a time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

PIECE_BYTES = 4 << 20  # read at once: some 20 ms of work, also when a view joins a run that is days old
LINE_BOUND = 64 << 20  # bytes: no record is as long; a file without line ends (a damaged disk leaves zeros) must not fill the memory

T = TypeVar("T")


class LineTail:
    """Remembers how far it read. A last line that is not finished yet is left for later."""

    def __init__(self, path: Path, piece_bytes: int = PIECE_BYTES) -> None:
        self._path = path
        self._piece_bytes = piece_bytes
        self._offset = 0
        self.error: str | None = None  # why it cannot be read at present; a file that is not there yet is no error

    def lines(self) -> list[bytes]:
        """Whole lines since the call before, at most about a piece of them (a single longer line comes whole, up to a bound at which it is cut);
        empty: nothing new, or `error`."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(self._piece_bytes)
                while b"\n" not in data and len(data) < LINE_BOUND and (more := file.read(self._piece_bytes)):
                    data += more
            self.error = None
        except FileNotFoundError:
            return []
        except OSError as error:
            self.error = f"{self._path.name} cannot be read: {error.strerror or error}"
            return []
        whole = data if len(data) >= LINE_BOUND and b"\n" not in data else data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.splitlines()


class Decoded:
    """Lines as records. A line that does not decode (of another release, or damaged) is counted and left out: a view never ends for one."""

    def __init__(self) -> None:
        self.unreadable = 0

    def of(self, lines: Iterable[bytes], decoder: msgspec.json.Decoder[T]) -> list[T]:
        records: list[T] = []
        for line in lines:
            try:
                records.append(decoder.decode(line))
            except (msgspec.DecodeError, RecursionError):  # the latter: brackets nested thousandfold
                self.unreadable += 1
        return records
