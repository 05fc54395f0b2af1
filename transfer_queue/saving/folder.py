"""What a saved queue is on the disk: `state` and `bytes`, in a folder that gets its name when both are whole and on the disk."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from transfer_queue.journal.logs import sync_folder
from transfer_queue.journal.pages import MAGIC, page, pages, write

STATE, BYTES = "state", "bytes"
METADATA = "metadata.json"  # what whoever saved it wants to know again; a file that may be missing
UNFINISHED = "-unfinished"  # how the name of a folder ends that is on its way
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE


class Damaged(ValueError):
    """A folder that holds no whole image."""


class Writing:
    """A folder on its way, under a name of its own. Leaving the context with an exception leaves nothing behind."""

    def __init__(self, folder: Path, replace: bool = False) -> None:
        """Raises FileExistsError for a folder that is there, unless it is a saved queue and is to be replaced: at every moment the name has the old
        one or the new."""
        if folder.exists() and not replace:
            raise _exists(folder)
        if folder.exists() and not _is_saved(folder):
            raise FileExistsError(
                f"{folder} is there and is no saved queue, for it holds no {STATE!r}: it stays as it is, and nothing was saved, for all that lies in "
                "it would go; name another folder"
            )
        self._folder, self._replace = folder, replace
        folder.parent.mkdir(parents=True, exist_ok=True)
        self._unfinished, self._holder = _begun(folder)
        try:
            self._bytes = self._open(BYTES)
        except BaseException:  # whatever it is, Ctrl-C included: nobody else would let the folder go
            self._drop()
            raise

    def _open(self, name: str) -> int:
        descriptor = os.open(self._unfinished / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.write(descriptor, MAGIC)
        return descriptor

    def add(self, chunk: memoryview | bytes) -> None:
        write(self._bytes, [page(chunk), chunk])

    def finish(self, state: bytes, metadata: bytes | None = None) -> None:
        """Now it is there. metadata: JSON."""
        descriptor = self._open(STATE)
        try:
            write(descriptor, [page(state), state])
            os.fsync(descriptor)
            os.fsync(self._bytes)
        finally:
            os.close(descriptor)
        if metadata is not None:
            with (self._unfinished / METADATA).open("xb") as file:
                file.write(metadata)
                file.flush()
                os.fsync(file.fileno())
        sync_folder(self._unfinished)
        if not (self._replace and self._folder.exists()):
            self._rename()
        else:
            _exchange(self._unfinished, self._folder)  # the old one goes under the unfinished one's name
        sync_folder(self._folder.parent)

    def _rename(self) -> None:
        try:
            os.rename(self._unfinished, self._folder)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            if not self._replace:
                raise _exists(self._folder) from None  # another save was quicker
            _exchange(self._unfinished, self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._bytes)
        self._drop()

    def _drop(self) -> None:
        """Nothing is there any more where it was finished."""
        shutil.rmtree(self._unfinished, ignore_errors=True)
        os.close(self._holder)


def _begun(folder: Path) -> tuple[Path, int]:
    """A new folder beside `folder`, and the descriptor that shows that somebody writes it."""
    left = re.compile(rf"{re.escape(folder.name)}\.\w{{8}}{UNFINISHED}")
    for path in folder.parent.iterdir():
        if left.fullmatch(path.name):
            _drop_if_left(path)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    holder = _hold(made)
    return made.rename(folder.parent / f"{made.name[1:]}{UNFINISHED}"), holder  # a name that others look for only when it is held


def _drop_if_left(path: Path) -> None:
    """By a saver that was killed; one that still writes holds it."""
    with contextlib.suppress(OSError):
        holder = _hold(path)
        shutil.rmtree(path, ignore_errors=True)
        os.close(holder)


def _hold(folder: Path) -> int:
    """Raises OSError where another process, or another save of this one, does."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:  # held by somebody, or Ctrl-C: the descriptor must not stay open
        os.close(descriptor)
        raise
    return descriptor


def _exchange(made: Path, folder: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_HERE, os.fsencode(made), _HERE, os.fsencode(folder), _EXCHANGE) == 0:
        return
    number = ctypes.get_errno()
    if number not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        raise OSError(number, os.strerror(number), str(folder))
    old = made.with_name(f"{folder.name}-replaced")  # some network file systems cannot exchange: for a moment nothing has the name
    shutil.rmtree(old, ignore_errors=True)  # of a saver that was killed here, and whose successor's image has the name by now
    os.rename(folder, old)
    os.rename(made, folder)
    shutil.rmtree(old)


def _is_saved(folder: Path) -> bool:
    """Whether a saved queue is there, also one of another package, or nothing."""
    return folder.is_dir() and ((folder / STATE).exists() or (folder / METADATA).exists() or not any(folder.iterdir()))


def _exists(folder: Path) -> FileExistsError:
    return FileExistsError(f"{folder} is there already: an image is never replaced; name another folder")


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
