"""The files of a journal's folder: logs of inputs, and snapshots where they begin."""

from __future__ import annotations

import fcntl
import functools
import os
import re
from pathlib import Path

import msgspec
import xxhash

import transfer_queue
from transfer_queue.controller.config import CoreConfig
from transfer_queue.journal.errors import JournalError
from transfer_queue.journal.pages import MAGIC, page, pages, unwritable
from transfer_queue.journal.records import Start
from transfer_queue.messages import Record

FORMAT = 1  # of logs and snapshots
_NAME = re.compile(r"(log|snapshot)-(\d{8})")


class Head(Record, frozen=True):
    """The first page of a log or a snapshot."""

    format: int
    sources: str  # of the state machine: only the same one makes of the inputs what they were
    config: bytes
    number: int  # of the log, and of the snapshot that it begins with
    now: float  # when it begins, seconds of the state machine's clock
    start: Start  # the controller's, that began it


class Log:
    """The log that is written."""

    def __init__(self, path: Path, descriptor: int, nbytes: int) -> None:
        self.path, self.descriptor, self.nbytes = path, descriptor, nbytes
        self.unsynced = nbytes > 0

    @classmethod
    def create(cls, folder: Path, head: Head) -> Log:
        """A new one, whose head is on the disk."""
        path = path_of(folder, "log", head.number)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unwritable(path, error) from error
        log = cls(path, descriptor, 0)
        body = msgspec.msgpack.encode(head)
        log.write([MAGIC, page(body), body])
        log.sync()
        sync_folder(folder)
        return log

    @classmethod
    def go_on(cls, path: Path, nbytes: int) -> Log:
        """One of before, of which `nbytes` are whole: what is behind them goes."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            os.ftruncate(descriptor, nbytes)
        except OSError as error:
            raise unwritable(path, error) from error
        return cls(path, descriptor, nbytes)

    def write(self, pieces: list[bytes]) -> None:
        """In one piece: for what a few requests are, a copy costs less than a call with many buffers."""
        self.unsynced = True
        whole = b"".join(pieces)
        try:
            done = os.write(self.descriptor, whole)
            while done < len(whole):
                done += os.write(self.descriptor, memoryview(whole)[done:])
        except OSError as error:
            raise unwritable(self.path, error) from error
        self.nbytes += done

    def sync(self) -> None:
        """What was written is on the disk."""
        if self.unsynced:
            self.unsynced = False
            try:
                os.fdatasync(self.descriptor)
            except OSError as error:
                raise unwritable(self.path, error) from error

    def close(self) -> None:
        os.close(self.descriptor)


def path_of(folder: Path, what: str, number: int) -> Path:
    return folder / f"{what}-{number:08d}"


def numbers(folder: Path, what: str) -> list[int]:
    """Of the logs or snapshots that are there, ascending."""
    found = (_NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[2]) for match in found if match is not None and match[1] == what)


def head_of(path: Path, file: memoryview) -> Head | None:
    """None: it was not written whole. Raises JournalError for another format."""
    first = next(pages(file), None)
    if first is None:
        return None
    try:
        return msgspec.msgpack.decode(first.body, type=Head)
    except msgspec.DecodeError as error:
        raise JournalError(f"{path}: {error}: it is of another format than {FORMAT}; finish the run with the release that began it") from error


def check_head(path: Path, head: Head, config: CoreConfig) -> None:
    """Raises JournalError unless this controller may go on with it."""
    if (head.format, head.sources) != (FORMAT, sources()):
        raise JournalError(
            f"{path} was written by another release (format {head.format}, {head.sources}; this one is {FORMAT}, {sources()}): the same inputs could "
            "mean something else here. Go on with the release that began the run, or save it there and load it here"
        )
    if head.config != encoded(config):
        raise JournalError(
            f"{path} is of a controller with another configuration: its inputs would mean something else. Start it as before, or give the new run a "
            "folder of its own"
        )


def encoded(config: CoreConfig) -> bytes:
    return msgspec.msgpack.encode(config)


@functools.cache
def sources() -> str:
    """A sum over the state machine's sources."""
    total = xxhash.xxh3_64()
    root = Path(transfer_queue.__file__).parent
    for folder in ("codec", "controller", "messages", "samplers"):
        for path in sorted((root / folder).glob("*.py")):
            total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def boot() -> str:
    """Another one after every start of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # no Linux: every start counts as one of the machine
        return os.urandom(16).hex()


def sync_folder(folder: Path) -> None:
    """Names that were given are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(folder: Path) -> int:
    """The descriptor that holds the folder until it is closed, or its process ends. Raises JournalError where another controller has it."""
    descriptor = os.open(folder / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise JournalError(f"{folder} is the journal of a controller that runs: two would undo each other; stop it, or name another folder") from None
    return descriptor
