"""What a saved queue is on the disk: `state` and `bytes`, in a folder that gets its name when both are whole and on the disk."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from transfer_queue.journal.logs import sync_folder
from transfer_queue.journal.pages import MAGIC, page, pages, write

STATE, BYTES = "state", "bytes"


class Damaged(ValueError):
    """A folder that holds no whole image."""


class Writing:
    """A folder on its way. Leaving the context with an exception leaves nothing behind."""

    def __init__(self, folder: Path) -> None:
        """Raises FileExistsError for a folder that is there: an image is never replaced."""
        if folder.exists():
            raise FileExistsError(f"{folder} is there already: an image is never replaced; name another folder")
        self._folder, self._unfinished = folder, folder.with_name(f"{folder.name}.unfinished")
        shutil.rmtree(self._unfinished, ignore_errors=True)
        self._unfinished.mkdir(parents=True)
        self._bytes = self._open(BYTES)

    def _open(self, name: str) -> int:
        descriptor = os.open(self._unfinished / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.write(descriptor, MAGIC)
        return descriptor

    def add(self, chunk: memoryview | bytes) -> None:
        write(self._bytes, [page(chunk), chunk])

    def finish(self, state: bytes) -> None:
        """Now it is there."""
        descriptor = self._open(STATE)
        try:
            write(descriptor, [page(state), state])
            os.fsync(descriptor)
            os.fsync(self._bytes)
        finally:
            os.close(descriptor)
        sync_folder(self._unfinished)
        os.rename(self._unfinished, self._folder)
        sync_folder(self._folder.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._bytes)
        shutil.rmtree(self._unfinished, ignore_errors=True)


def read_state(folder: Path) -> bytes:
    """Raises Damaged, FileNotFoundError."""
    with _mapped(folder / STATE) as file:
        first = next(pages(file), None)
        if first is None or first.end != len(file):
            raise Damaged(f"{folder / STATE} is not whole: nothing can be loaded from it")
        return bytes(first.body)


def read_bytes(folder: Path) -> Iterator[memoryview]:
    """Chunk by chunk. Raises Damaged behind the last that is whole, if that is not the end."""
    with _mapped(folder / BYTES) as file:
        end = len(MAGIC)
        for found in pages(file):
            end = found.end
            yield found.body
        if end != len(file):
            raise Damaged(f"{folder / BYTES} is not whole behind byte {end}: nothing can be loaded from it")


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[memoryview]:
    with path.open("rb") as file:
        if not path.stat().st_size:
            raise Damaged(f"{path} is empty: nothing can be loaded from it")
        yield memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
