"""Append-only line files that cost the writer nothing but an encoded line: a thread brings them to disk every second."""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

FLUSH_S = 0.5


class RecordLost(OSError):
    """The disk does not take the record any more."""


class LineLog:
    """One JSON line a record. `append` may be called from one thread; lines are on disk within a second, all of them after `close`."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
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
        self._lines.append(self._encoder.encode(record))

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
