"""A queue in a folder: written while it works, the folder before replaced in one step; loaded into a queue that is still empty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from transfer_queue.compat.door import door
from transfer_queue.saving.folder import STATE
from transfer_queue.saving.loader import load
from transfer_queue.saving.saver import save

ANSWER_S = 60.0  # deadline of one request


def save_checkpoint(checkpoint_dir: str | Path, *, include_storage: bool = True, metadata: dict[str, Any] | None = None) -> None:
    """All partitions as they are at one moment, whatever others write meanwhile. A checkpoint that is there is replaced: its name has the old one
    until the new one is whole. Any other folder that is not empty is refused, for what lies in it would go.

    metadata: plain values, kept as `metadata.json`. include_storage: bytes are saved in any case, without them nothing could be loaded. Raises
    RuntimeError (no queue), TypeError (metadata), FileExistsError, OSError, QueueError, QueueTimeout, QueueGone, Gone (a
    shard ended meanwhile); the old one stays.
    """
    text = msgspec.json.format(msgspec.json.encode({"user_metadata": metadata or {}}))
    address = door().address
    save(address.url, Path(checkpoint_dir).resolve(), address.security, ANSWER_S, replace=True, metadata=text)


def load_checkpoint(checkpoint_dir: str | Path) -> None:
    """Right after `init`, before anybody writes. Raises RuntimeError (no queue), FileNotFoundError or Damaged (no checkpoint of this queue, or not a
    whole one), QueueError (keys are there already, or there is no room), QueueTimeout, QueueGone; nothing was loaded then."""
    folder = Path(checkpoint_dir)
    address = door().address
    if not (folder / STATE).is_file():
        raise FileNotFoundError(
            f"{folder} holds no {STATE!r}, so it is no checkpoint of this queue, and nothing was loaded; one that TransferQueue wrote is "
            "pickled, and is not read"
        )
    load(address.url, folder, address.security, ANSWER_S)
