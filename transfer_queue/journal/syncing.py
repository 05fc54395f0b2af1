"""A thread that brings a log to the disk soon after it was written to, so that the loop does not wait for it."""

from __future__ import annotations

import os
import threading

from transfer_queue.journal.errors import JournalError
from transfer_queue.journal.logs import Log
from transfer_queue.journal.pages import unwritable

SYNC_S = 1.0  # a reply that left with its cause only written has it on the disk after so long, at the latest, and the time a sync takes


class Syncer:
    def __init__(self, log: Log) -> None:
        self._log = log
        self._written, self._closed = threading.Event(), threading.Event()
        self._lock = threading.Lock()  # held while the thread uses the log
        self._error: JournalError | None = None
        self._thread = threading.Thread(target=self._run, name="journal-sync", daemon=True)
        self._thread.start()

    def written(self) -> None:
        """There is something to be synced. Raises JournalError if the last time failed."""
        if self._error is not None:
            raise self._error
        if not self._written.is_set():  # the thread clears it before it syncs: what was written until then is synced with it
            self._written.set()

    def sync(self) -> None:
        """What was written to the log is on the disk. Raises JournalError also where the thread was told that it is not: the system says so once."""
        with self._lock:
            self._log.sync()
        if self._error is not None:
            raise self._error

    def turn_to(self, log: Log) -> None:
        """Another log from now on; the old one may be closed."""
        with self._lock:
            self._log = log

    def close(self) -> None:
        self._closed.set()
        self._written.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():  # looked at behind the last `clear`, which may have taken away what `close` had set
            self._written.wait()
            if self._closed.wait(SYNC_S):
                return
            self._written.clear()
            with self._lock:
                try:
                    os.fdatasync(self._log.descriptor)
                except OSError as error:  # raised where the loop writes next
                    self._error = unwritable(self._log.path, error)
                    return
