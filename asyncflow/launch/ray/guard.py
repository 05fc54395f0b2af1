"""`python guard.py FOLDER`: ends what is left of the Ray cluster in FOLDER once its launcher is gone, and removes the folder.

Ray's own processes end with whoever started them, but for two helpers of a node, which were seen to stay. They are known by their logs, which lie in
the folder: its name is that of one cluster only, so nobody else's process is touched.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator

PATIENCE = ((4.0, signal.SIGTERM), (3.0, signal.SIGKILL), (3.0, None))  # seconds for all to end by themselves, then what they are sent
LOOK_S = 0.1


def main(folder: str) -> int:
    """Waits until standard input is closed: whoever started this process holds it open and writes nothing. 1: somebody is left.

    That one is spared: after Ray's shutdown a launcher still has its own log open.
    """
    spared = {os.getpid(), os.getppid()}
    sys.stdin.buffer.read()
    for patience_s, number in PATIENCE:
        deadline = time.monotonic() + patience_s
        while (left := [pid for pid in holders(folder) if pid not in spared]) and time.monotonic() < deadline:
            time.sleep(LOOK_S)  # /proc tells nobody when a descriptor is closed
        if number is not None:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
    shutil.rmtree(folder, ignore_errors=True)
    return 1 if left else 0


def holders(folder: str) -> Iterator[int]:
    """Processes that have a file of the folder open."""
    inside = os.path.join(folder, "")
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):  # it ended, or it is another user's
                descriptors = os.scandir(f"/proc/{name}/fd")
                if any(_target(entry.path).startswith(inside) for entry in descriptors):
                    yield int(name)


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:  # closed meanwhile
        return ""


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(main(sys.argv[1]))
