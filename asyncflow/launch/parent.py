"""No worker outlives its launcher, even one that was killed with -9 and could tell nobody."""

from __future__ import annotations

import multiprocessing

from transfer_queue.operation.parent import end_when_gone


def exit_with_parent() -> None:
    """When the process that started this one is gone, end. Works for processes of `multiprocessing` (their parent's death closes a pipe); elsewhere
    it does nothing."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        end_when_gone(parent.sentinel)
