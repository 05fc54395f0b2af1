"""Nothing of a run stays. Its processes are known by a word in their environment, which every child inherits,
its segments by that nobody has them open."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

MARK = "ASYNCFLOW_TEST_RUN"
SEGMENTS = Path("/dev/shm")


def processes(mark: str) -> dict[int, str]:
    """{pid: command line} of all whose environment has MARK=`mark`, but this one."""
    wanted = f"{MARK}={mark}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # it may end while it is looked at
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    return found


def end(mark: str, patience_s: float = 10.0) -> dict[int, str]:
    """Wait until those processes are gone, kill those that are not, by their id. What had to be killed."""
    end_by = time.monotonic() + patience_s
    while (left := processes(mark)) and time.monotonic() < end_by:
        time.sleep(0.1)
    killed = dict(left)
    while left and time.monotonic() < end_by + 10.0:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
        left = processes(mark)
        killed |= left
    return killed


def segments() -> set[str]:
    return {path.name for path in SEGMENTS.iterdir()} if SEGMENTS.is_dir() else set()


def abandoned(before: set[str]) -> list[str]:
    """Segments that are new and that no process has mapped or open."""
    used = "\n".join(_mapped(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return sorted(name for name in segments() - before if f"{SEGMENTS}/{name}" not in used)


def remove(names: list[str]) -> None:
    for name in names:
        (SEGMENTS / name).unlink(missing_ok=True)


def _mapped(process: Path) -> str:
    held = []
    with contextlib.suppress(OSError):
        held.append((process / "maps").read_text())
        held += [os.readlink(descriptor) for descriptor in (process / "fd").iterdir()]
    return "\n".join(held)
