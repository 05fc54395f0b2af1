"""What a controller that keeps a journal is told about it."""

from __future__ import annotations

from typing import Literal

from transfer_queue.messages import Record

Sync = Literal["commit", "always"]

REPLAY_S = 2.0


class JournalSettings(Record, frozen=True):
    """`folder` is this controller's alone, and the same at every start."""

    folder: str
    sync: Sync = "commit"  # what is on the disk, and not only written, before a reply leaves: those of commits, or all
    snapshot_bytes: int = 64 << 20  # of the log, at most about, before the next snapshot
    replay_s: float = REPLAY_S  # of processor time in the log, at most about: the next start spends that again, or less

    def check(self) -> None:
        """Raises ValueError for what could not work."""
        if self.snapshot_bytes < 1:
            raise ValueError(f"snapshot_bytes={self.snapshot_bytes} must be >= 1: every request would write a snapshot")
        if not self.replay_s > 0:
            raise ValueError(f"replay_s={self.replay_s} must be > 0: every request would write a snapshot")
