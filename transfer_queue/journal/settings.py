"""What a controller that keeps a journal is told about it."""

from __future__ import annotations

from typing import Literal

from transfer_queue.messages import Record

Sync = Literal["commit", "always"]


class JournalSettings(Record, frozen=True):
    """`folder` is this controller's alone, and the same at every start."""

    folder: str
    sync: Sync = "commit"  # what is on the disk, and not only written, before a reply leaves: those of commits, or all
    snapshot_bytes: int = 64 << 20  # of the log, at least, between two snapshots; with few bytes a restart is quicker, with many the controller

    def check(self) -> None:
        """Raises ValueError for what could not work."""
        if self.snapshot_bytes < 1:
            raise ValueError(f"snapshot_bytes={self.snapshot_bytes} must be >= 1: every request would write a snapshot")
