"""The thread that syncs a log ends when it is told to, at whatever it is."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from transfer_queue.journal import syncing
from transfer_queue.journal.logs import Log
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
