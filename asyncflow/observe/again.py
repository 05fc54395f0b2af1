"""What a line file holds behind a mark, for a writer that was killed, was started again, and is told once more what it wrote there.

Nothing is written twice: what is told again is found. Lines that tell of something else, which then never happened, give way.
"""

from __future__ import annotations

import operator
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

Same = Callable[[bytes, bytes], bool]  # (line of the file, line that is told, both without their ends) → whether they say the same


class Mark(msgspec.Struct, frozen=True):
    """A place in a line file, behind a whole line."""

    nbytes: int = 0
    lines: int = 0


def no_line(line: bytes) -> bool:
    return False


class Again:
    """Goes forward from the mark. A last line that a crash cut off goes at once."""

    def __init__(self, path: Path, mark: Mark, same: Same = operator.eq, alone: Callable[[bytes], bool] = no_line) -> None:
        """`alone`: a line that is true though nobody tells it again."""
        self.mark = mark  # behind what was found so far
        self._path, self._same, self._alone = path, same, alone
        with path.open("ab"), path.open("rb") as file:
            file.seek(mark.nbytes)
            *whole, torn = file.read().split(b"\n")
        self._lines = deque(whole)
        if torn:
            os.truncate(path, mark.nbytes + sum(len(line) + 1 for line in whole))

    def finds(self, line: bytes) -> bool:
        """Whether it is there, next. If something else is, that goes, and whatever follows on it."""
        while self._lines and self._alone(self._lines[0]):
            self.accept()
        if not self._lines:
            return False
        if self._same(self._lines[0], line):
            self.accept()
            return True
        self.cut()
        return False

    def accept(self) -> bytes | None:
        """The next line as it is; None: there is none."""
        if not self._lines:
            return None
        line = self._lines.popleft()
        self.mark = Mark(self.mark.nbytes + len(line) + 1, self.mark.lines + 1)
        return line

    def cut(self) -> None:
        """What was not found by now will not come again."""
        if self._lines:
            self._lines.clear()
            os.truncate(self._path, self.mark.nbytes)
