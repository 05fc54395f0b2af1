"""Append-only line files that cost the writer nothing but an encoded line: a thread brings them to disk every second."""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from asyncflow.observe.again import Again, Mark

FLUSH_S = 0.5


class RecordLost(OSError):
    """The disk does not take the record any more."""


class LineLog:
    """One JSON line a record. `append` may be called from one thread; lines are on disk within a second, all of them after `close`."""

    def __init__(self, path: Path, again: Again | None = None) -> None:
        """`again`: of the same file, where a writer before this one left it unfinished."""
        self._file = path.open("ab")
        self._again = again
        self._nbytes = self._count = 0  # of what was appended here, and not found
        self._encoder = msgspec.json.Encoder()
        self._lines: deque[bytes] = deque()  # filled by one thread, emptied by another: both ends are atomic
        self._lock = threading.Lock()  # held while writing, so that lines keep their order
        self._closing = threading.Event()
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name=f"flush {path.name}", daemon=True)
        self._thread.start()

    def append(self, record: Any) -> None:
        """Encode and keep; no system call. Raises RecordLost once writing has failed: a run without its record ends, else lines would pile up."""
        if self._error is not None:
            raise RecordLost(f"{self._file.name} cannot be written: {self._error}; nothing is recorded any more; free the disk") from self._error
        line = self._encoder.encode(record)
        if self._again is not None and self._again.finds(line):
            return
        self._nbytes, self._count = self._nbytes + len(line) + 1, self._count + 1
        self._lines.append(line)

    @property
    def mark(self) -> Mark:
        """Behind everything appended so far."""
        before = Mark() if self._again is None else self._again.mark
        return Mark(before.nbytes + self._nbytes, before.lines + self._count)

    def flush(self) -> None:
        """Write everything appended so far."""
        with self._lock:
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            if lines:
                self._file.write(b"\n".join(lines) + b"\n")
                self._file.flush()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self.flush()
        if self._again is not None:
            self._again.cut()
        self._file.close()

    def _run(self) -> None:
        try:
            while not self._closing.wait(FLUSH_S):
                self.flush()
        except OSError as error:
            self._error = error

    def __enter__(self) -> LineLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
