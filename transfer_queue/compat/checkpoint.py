"""A queue in a folder: written while it works, the one before replaced in one step; loaded into a queue that is still empty."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import msgspec

from transfer_queue.compat.door import door
from transfer_queue.errors import QueueError
from transfer_queue.journal.logs import sync_folder
from transfer_queue.saving.loader import load
from transfer_queue.saving.saver import save

METADATA = "metadata.json"
IMAGE = "queue"  # folder inside
ANSWER_S = 60.0  # deadline of one request
_AT_FDCWD, _EXCHANGE = -100, 2  # of renameat2


def save_checkpoint(checkpoint_dir: str | Path, *, include_storage: bool = True, metadata: dict[str, Any] | None = None) -> None:
    """All partitions as they are at one moment, whatever others write meanwhile. A folder that is there is replaced: at every moment it is the old
    one or the new one, whole.

    metadata: plain values, kept beside it. include_storage: bytes are saved in any case, without them nothing could be loaded. Raises RuntimeError
    (no queue), OSError, TypeError (metadata), QueueError, QueueTimeout, QueueGone, Gone (a shard ended meanwhile); the old folder stays then.
    """
    text = msgspec.json.format(msgspec.json.encode({"format": 1, "user_metadata": metadata or {}}))
    address = door().address
    folder = Path(checkpoint_dir).absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = folder.parent / f".{folder.name}.{uuid.uuid4().hex[:8]}"
    try:
        made.mkdir()
        save(address.url, made / IMAGE, address.security, ANSWER_S)
        with (made / METADATA).open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(made)
        _replace(made, folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(made, ignore_errors=True)  # the old one, or what was not finished


def load_checkpoint(checkpoint_dir: str | Path) -> None:
    """Right after `init`, before anybody writes. Raises RuntimeError (no queue, or one that holds keys already), FileNotFoundError or Damaged (no
    checkpoint of ours, or not a whole one), QueueError, QueueTimeout, QueueGone; nothing was loaded then."""
    folder = Path(checkpoint_dir)
    if not (folder / METADATA).is_file() or not (folder / IMAGE).is_dir():
        raise FileNotFoundError(
            f"{folder} is no checkpoint of this queue, which has {METADATA} and a folder {IMAGE!r}; one that TransferQueue wrote is pickled, and is "
            "not read. Nothing was loaded"
        )
    address = door().address
    try:
        load(address.url, folder / IMAGE, address.security, ANSWER_S)
    except QueueError as error:
        if error.code != "not_empty":
            raise
        raise RuntimeError(f"{folder} was not loaded, the queue holds keys already: load right after init(), before anybody writes") from error


def _replace(made: Path, folder: Path) -> None:
    """`made` gets the name, and what had it before gets the name of `made`."""
    if not folder.exists():
        made.rename(folder)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(made), _AT_FDCWD, os.fsencode(folder), _EXCHANGE) == 0:
        return
    number = ctypes.get_errno()
    if number not in (errno.EINVAL, errno.ENOSYS):
        raise OSError(number, os.strerror(number), str(folder))
    old = made.with_name(f"{made.name}-old")  # a file system that cannot exchange, some network ones: for a moment the folder has no name
    folder.rename(old)
    made.rename(folder)
    old.rename(made)
