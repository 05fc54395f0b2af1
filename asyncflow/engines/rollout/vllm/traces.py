"""Files that vLLM leaves behind on the CPU when its processes are killed: where its workers met, and the memory through which they share a model."""

from __future__ import annotations

import contextlib
import glob
import os
import tempfile
from pathlib import Path

IDENT = "VLLM_DIST_IDENT"  # variable of vLLM's CPU workers: the name of the file at which they met; their shared memory's names begin with it


def ident_here() -> str:
    """In a worker process of vLLM: what its files are named after; "" where it leaves none."""
    ident = os.environ.get(IDENT, "")
    return ident if ident.startswith("vllm_dist_") else ""


def remove_traces(ident: str) -> None:
    """Remove the files of one engine, whose processes are gone; those of any other have other names. None may be there any more."""
    if not ident:
        return
    for path in (*glob.glob(f"/dev/shm/{glob.escape(ident)}*"), str(Path(tempfile.gettempdir()) / ident)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
