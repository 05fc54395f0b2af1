"""Files that vLLM leaves behind when its processes are killed: their sockets and the memory through which they talk; on the CPU also where its
workers met, and the memory through which they share a model."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Collection
from multiprocessing import resource_tracker
from pathlib import Path

IDENT = "VLLM_DIST_IDENT"  # variable of vLLM's CPU workers: the name of the file at which they met; their shared memory's names begin with it
SOCKETS = "VLLM_RPC_BASE_PATH"  # variable of vLLM's: the folder of the sockets of all its processes
FOLDER = "afvllm-"  # begins the name of such a folder: short, for a socket's whole path has 107 characters at most
TRIES = 8  # for a new folder: another engine that starts may take it for one that was left behind, until it is locked
OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
MOST_FOLDER = 107 - len("/01234567-89ab-cdef-0123-456789abcdef")  # bytes of its path: vLLM names its sockets by UUIDs
SEGMENT = re.compile(r"/dev/shm/(psm_\w+)$", re.MULTILINE)  # in a process's maps: Python's shared memory that has not been removed yet


def new_folder() -> tuple[str, int]:
    """For the sockets of one engine: its path, and a descriptor that is to be open as long as it is needed. Whoever dies while vLLM starts has nobody
    yet who would remove its folder, so the next one does. Raises OSError that names the folder of temporary files, what is wrong with it, and the
    fix."""
    parent = "the folder of temporary files"
    try:
        parent = tempfile.gettempdir()
        for left in glob.glob(f"{glob.escape(parent)}/{FOLDER}*"):
            _remove_ownerless(left)
        folder, held = _new_held()
    except OSError as error:  # read-only, full, or none at all
        raise OSError(f"{parent} takes no folder for its sockets ({error}); make room there, or name another by TMPDIR") from error
    if (length := len(os.fsencode(folder))) > MOST_FOLDER:
        os.close(held)
        os.rmdir(folder)
        rule = f"a folder for its sockets there has a path of {length} characters, and at most {MOST_FOLDER} leave room for their names"
        raise OSError(f"{parent} has too long a name: {rule}; name a shorter one by TMPDIR")
    return folder, held


def _new_held() -> tuple[str, int]:
    for _ in range(TRIES):
        folder = tempfile.mkdtemp(prefix=FOLDER)
        with contextlib.suppress(FileNotFoundError):
            held = os.open(folder, OPEN)
            try:
                if _is_ours(held):
                    return folder, held
            except OSError:  # no locks in this file system: nobody can take it for ownerless either
                return folder, held
            os.close(held)
    raise OSError(f"{TRIES} times a new folder was taken away at once")


def _remove_ownerless(folder: str) -> None:
    with contextlib.suppress(OSError):  # gone meanwhile, no folder, another user's, no locks
        held = os.open(folder, OPEN)
        try:
            if _is_ours(held):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(held)


def _is_ours(held: int) -> bool:
    """Lock a folder for as long as its descriptor is open, which a killed process cannot outlive. False: another holds it, or it is gone."""
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(held).st_nlink > 0


def segments_of(pid: int) -> set[str]:
    """Names of the shared memory that a process of vLLM talks through; of one that is gone none."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return set(SEGMENT.findall(Path(f"/proc/{pid}/maps").read_text()))
    return set()


def ident_here() -> str:
    """In a worker process of vLLM: what its files are named after; "" where it leaves none."""
    ident = os.environ.get(IDENT, "")
    return ident if ident.startswith("vllm_dist_") else ""


def folder_here() -> str:
    """In a process of vLLM: the folder of its engine's sockets; "" where it is not ours."""
    folder = os.environ.get(SOCKETS, "")
    return folder if Path(folder).name.startswith(FOLDER) else ""


def remove_traces(ident: str, folder: str, segments: Collection[str] = ()) -> None:
    """Remove the files of one engine, whose processes are gone; those of any other have other names. None may be there any more."""
    if folder:
        shutil.rmtree(folder, ignore_errors=True)  # its workers may be at it at the same time
    for name in segments:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"/dev/shm/{name}")
            resource_tracker.unregister(f"/{name}", "shared_memory")  # it is ours too: at its end it would remove them, and call them leaked
    if not ident:
        return
    for path in (*glob.glob(f"/dev/shm/{glob.escape(ident)}*"), str(Path(tempfile.gettempdir()) / ident)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
