"""What a worker is doing right now, readable from outside at any moment, even after kill -9: one byte a thread in a mapped file of the run directory.

The kill tests stop a process, read in which phase it is, and only then kill it; a live view reads the same bytes.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Literal

Activity = Literal["busy", "wait", "paused"]
Phase = Literal["idle", "compute", "put", "commit", "publish", "load", "receive", "evaluate", "read", "export"]
Thread = Literal["main", "writer", "receiver"]

PHASES: tuple[Phase, ...] = ("idle", "compute", "put", "commit", "publish", "load", "receive", "evaluate", "read", "export")
THREADS: tuple[Thread, ...] = ("main", "writer", "receiver")
_CODE = {phase: code for code, phase in enumerate(PHASES)}
_SLOT = {thread: slot for slot, thread in enumerate(THREADS)}
FOLDER = "phases"  # of a run directory: one file a worker


class PhaseMarks:
    """Written by the worker. A mark costs one byte store; each thread has a byte of its own, so no lock is needed."""

    def __init__(self, run_dir: Path, worker: str) -> None:
        path = run_dir / FOLDER / worker
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(len(THREADS)))
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), len(THREADS))

    def set(self, phase: Phase, thread: Thread = "main") -> None:
        self._bytes[_SLOT[thread]] = _CODE[phase]


def read_phases(run_dir: Path, worker: str) -> dict[Thread, Phase]:
    """The phases of a worker's threads; empty for a worker that never started. Meaningful as a set only while the process is stopped."""
    try:
        marks = (run_dir / FOLDER / worker).read_bytes()
    except (OSError, ValueError):  # ValueError: a name with a null character
        marks = b""
    return {thread: PHASES[mark] for thread, mark in zip(THREADS, marks, strict=False) if mark < len(PHASES)}
