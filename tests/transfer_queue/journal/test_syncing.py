"""The thread that syncs a log ends when it is told to, at whatever it is."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from controller_bench import spec
from journal_kept import Silent

from transfer_queue import messages as m
from transfer_queue.controller.core import CoreConfig
from transfer_queue.journal import syncing
from transfer_queue.journal.errors import JournalError
from transfer_queue.journal.logs import Log
from transfer_queue.journal.recovery import open_journal
from transfer_queue.journal.settings import JournalSettings
from transfer_queue.journal.syncing import Syncer


def test_a_close_between_the_wait_and_the_sync_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncing, "SYNC_S", 0.0)
    path = tmp_path / "log"
    path.touch()
    log = Log.go_on(path, 0)
    syncer = Syncer(log)
    first = syncer._written

    class Closing(threading.Event):
        """What `close` sets is set just before the thread clears it."""

        def clear(self) -> None:
            syncer._closed.set()
            self.set()
            super().clear()

    syncer._written = Closing()
    first.set()
    syncer._thread.join(5.0)
    assert not syncer._thread.is_alive()
    log.close()


def test_a_commit_does_not_leave_when_the_thread_was_told_that_the_disk_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system tells of a failure once: whoever syncs besides is told that all is well."""
    monkeypatch.setattr(syncing, "SYNC_S", 0.0)
    opened = open_journal(JournalSettings(str(tmp_path)), CoreConfig(topics=[spec()]), Silent())
    in_thread, commits = threading.Event(), threading.Event()

    def fdatasync(descriptor: int) -> None:
        if threading.current_thread().name == "journal-sync":
            in_thread.set()
            commits.wait(0.5)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        commits.set()

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    opened.journal.tick()
    opened.journal.keep([])
    assert in_thread.wait(5.0)
    opened.journal.tick()
    with pytest.raises(JournalError, match="Input/output error"):
        opened.journal.keep([(b"trainer", m.OkCommitted(version=1, trained=4, done=False))])
    os.close(opened.holder)
