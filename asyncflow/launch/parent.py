"""No worker outlives its launcher, even one that was killed with -9 and could tell nobody."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait

ORPHANED = 87  # exit code of a process that had to end itself
GRACE_S = 5.0  # between the polite end and the hard one


def exit_with_parent() -> None:
    """Watch the process that started this one, in a thread; when it is gone, end: SIGTERM to self, after a grace `os._exit`.

    Works for processes of `multiprocessing` (their parent's death closes a pipe); elsewhere it does nothing.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    threading.Thread(target=_watch, args=(parent.sentinel,), name="parent watch", daemon=True).start()


def _watch(sentinel: int) -> None:
    wait([sentinel])  # no deadline: the parent's life is the deadline
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_S)
    os._exit(ORPHANED)
