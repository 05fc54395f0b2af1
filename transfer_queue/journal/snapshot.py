"""The whole state of a controller in one file: written by a thread under another name, synced, and renamed: it is there whole, or not at all."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from transfer_queue.controller.run import FrozenRun
from transfer_queue.frozen import Packed, Shape, pack, unpack
from transfer_queue.journal.errors import JournalError
from transfer_queue.journal.logs import Head, head_of, numbers, path_of, sync_folder
from transfer_queue.journal.pages import MAGIC, page, pages, unwritable, write
from transfer_queue.messages import Record


class _Shapes(Record, frozen=True):
    arrays: list[Shape]


class Snapshot(NamedTuple):
    head: Head
    state: FrozenRun


def pieces(head: Head, packed: Packed) -> list[bytes | memoryview]:
    """A file: pages of the head, the shapes, the record, and each array."""
    bodies: list[bytes | memoryview] = [msgspec.msgpack.encode(head), msgspec.msgpack.encode(_Shapes(packed.shapes)), packed.record]
    bodies += [array.reshape(-1).view(np.uint8).data for array in packed.arrays]
    return [MAGIC, *(piece for body in bodies for piece in (page(body), body))]


def read(path: Path, file: memoryview) -> Snapshot | None:
    """None: it is not whole. Raises JournalError for another format."""
    head = head_of(path, file)
    if head is None:
        return None
    bodies = [found.body for found in pages(file)]
    if len(bodies) < 3:
        return None
    try:
        shapes = msgspec.msgpack.decode(bodies[1], type=_Shapes).arrays
        return Snapshot(head, unpack(FrozenRun, bodies[2], shapes, bodies[3:])) if len(bodies) == 3 + len(shapes) else None
    except (msgspec.DecodeError, ValueError) as error:
        raise JournalError(f"{path}: its sums are right and it holds no state of a controller: {error}") from error


class Writing:
    """One snapshot on its way to the disk. When it is there, what came before it goes."""

    def __init__(self, folder: Path, head: Head, state: FrozenRun) -> None:
        """The state is packed here: what follows changes it."""
        self._folder, self._head = folder, head
        self._packed = pack(state)
        self.nbytes = len(self._packed.record) + sum(array.nbytes for array in self._packed.arrays)
        self.took_s = 0.0  # when it is done
        self._error: JournalError | None = None
        self._thread = threading.Thread(target=self._run, name="snapshot", daemon=True)
        self._thread.start()

    def done(self) -> bool:
        """Whether it is there. Raises JournalError if it will never be."""
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def wait(self, timeout_s: float) -> None:
        """For its end; one that takes longer is left to the next start."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        path, begun = path_of(self._folder, "snapshot", self._head.number), time.monotonic()
        try:
            save(path, pieces(self._head, self._packed))
            drop_before(self._folder, self._head.number)
        except JournalError as error:  # raised where the loop asks
            self._error = error
        except OSError as error:
            self._error = unwritable(path, error)
        self.took_s = time.monotonic() - begun


def save(path: Path, content: list[bytes | memoryview]) -> None:
    """Whole, or not at all."""
    unfinished = path.with_suffix(".unfinished")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(unfinished, path)
    sync_folder(path.parent)


def drop_before(folder: Path, number: int) -> None:
    """Logs and snapshots that a newer snapshot makes of no use."""
    for what in ("log", "snapshot"):
        for old in numbers(folder, what):
            if old < number:
                path_of(folder, what, old).unlink()
