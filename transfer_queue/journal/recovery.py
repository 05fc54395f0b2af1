"""A controller out of its journal's folder: new where that is empty, else what it was when it ended."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from transfer_queue.controller.config import CoreConfig
from transfer_queue.controller.core import Core
from transfer_queue.controller.runtime import Observer
from transfer_queue.controller.server import LoopClock
from transfer_queue.journal.errors import JournalError
from transfer_queue.journal.journal import Journal
from transfer_queue.journal.logs import FORMAT, Head, Log, boot, check_head, encoded, head_of, lock, numbers, path_of, sources
from transfer_queue.journal.observing import Later, Resumed
from transfer_queue.journal.pages import is_begun, is_torn
from transfer_queue.journal.records import Start
from transfer_queue.journal.replay import Replay
from transfer_queue.journal.settings import JournalSettings
from transfer_queue.journal.snapshot import Snapshot, read


class Opened(NamedTuple):
    core: Core
    clock: LoopClock
    journal: Journal
    back: bool  # it was there before
    holder: int  # descriptor that keeps the folder ours, to be closed last


class Past(NamedTuple):
    """What a folder holds: a state machine as it was after the last input that was kept."""

    core: Core
    clock: LoopClock  # shows the time of that input
    start: Start  # the last one
    path: Path  # of the last log
    head: Head
    end: int  # of its last whole page
    work_s: float  # processor time that the inputs took


class _Log(NamedTuple):
    path: Path
    file: memoryview
    head: Head


def open_journal(
    settings: JournalSettings, config: CoreConfig, observer: Observer, attach: Callable[[Core], None] = lambda core: None
) -> Opened:
    """`attach` gets the state machine before it does anything, for an observer that reads it while it is told of the past.

    Raises JournalError for a folder that another controller has, that another release or configuration wrote, or that is damaged."""
    settings.check()
    folder = Path(settings.folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    holder = lock(folder)
    try:
        for unfinished in folder.glob("*.unfinished"):
            unfinished.unlink()
        past = restore(folder, config, observer, attach)
        return _new(settings, config, observer, attach, holder) if past is None else _go_on(settings, observer, past, holder)
    except BaseException:  # whatever it is: the folder is nobody's
        os.close(holder)
        raise


def restore(folder: Path, config: CoreConfig, observer: Observer, attach: Callable[[Core], None] = lambda core: None) -> Past | None:
    """The newest snapshot, and every input after it; nothing in the folder changes. None where no controller ever was."""
    logs = _logs(folder)
    for log in logs:
        check_head(log.path, log.head, config)
    snapshot = _newest(folder, config)
    first = 0 if snapshot is None else snapshot.head.number
    found = [log.head.number for log in logs if log.head.number >= first]
    if not logs and snapshot is None:
        return None
    if not found or found != list(range(first, first + len(found))):
        raise JournalError(f"{folder}: logs {found} do not follow on snapshot {first}: files are missing; put them back")
    return _replayed([log for log in logs if log.head.number >= first], snapshot, config, observer, attach)


def _replayed(
    logs: list[_Log], snapshot: Snapshot | None, config: CoreConfig, observer: Observer, attach: Callable[[Core], None]
) -> Past:
    clock, resumed = LoopClock(), Resumed(observer)
    clock.now = logs[0].head.now
    core = Core(config, resumed, clock)
    attach(core)
    if snapshot is not None:
        core.thaw(snapshot.state)
    resumed.calls = core.emitted
    replay, end, begun = Replay(core, clock, logs[0].head.start), 0, time.thread_time()
    for log in logs:
        end = replay.log(log.path, log.file)
        if end < len(log.file) and (log is not logs[-1] or (replay.start.boot == boot() and not is_torn(log.file[end:]))):
            raise JournalError(f"{log.path} is damaged behind byte {end}, and more follows on it: put the file back as it was")
    resumed.close()
    return Past(core, clock, replay.start, logs[-1].path, logs[-1].head, end, time.thread_time() - begun)


def _new(settings: JournalSettings, config: CoreConfig, observer: Observer, attach: Callable[[Core], None], holder: int) -> Opened:
    clock, later = LoopClock(), Later(observer)
    core = Core(config, later, clock)
    attach(core)
    head = Head(FORMAT, sources(), encoded(config), 0, clock.now, Start(life=0, boot=boot(), ahead_s=0.0))
    log = Log.create(Path(settings.folder), head)
    return Opened(core, clock, Journal(settings, core, clock, later, log, head, 0.0), False, holder)


def _go_on(settings: JournalSettings, observer: Observer, past: Past, holder: int) -> Opened:
    core, clock, start, later = past.core, past.clock, _start(past, settings), Later(observer)
    core.observe(later)
    log = Log.go_on(past.path, past.end)
    journal = Journal(settings, core, clock, later, log, msgspec.structs.replace(past.head, start=start), past.work_s)
    clock.turn_to(start.ahead_s)
    journal.restarted()
    core.restarted(start.silent_s, start.undone)
    journal.keep([])
    return Opened(core, clock, journal, True, holder)


def _start(past: Past, settings: JournalSettings) -> Start:
    """Of this process."""
    before, last, now = past.start, past.clock.now, time.monotonic()
    same = boot() == before.boot
    silent_s = now + before.ahead_s - last
    if same and silent_s >= 0.0:
        return Start(before.life + 1, before.boot, before.ahead_s, silent_s)
    # the machine was started anew, and its clock with it, or this container has a clock of its own: how long nobody was there is not known
    return Start(before.life + 1, boot(), last - now, 0.0, undone=not same and settings.sync != "always")


def _logs(folder: Path) -> list[_Log]:
    """Those that begin whole; one that does not is the last, and was never written to."""
    found: list[_Log] = []
    present = numbers(folder, "log")
    for number in present:
        path = path_of(folder, "log", number)
        file = _contents(path)
        head = head_of(path, file)
        if head is not None:
            found.append(_Log(path, file, head))
        elif number != present[-1] or not is_begun(file):
            raise JournalError(f"{path} is damaged at its beginning, and more follows on it: put the file back as it was")
    return found


def _newest(folder: Path, config: CoreConfig) -> Snapshot | None:
    """The newest that is whole."""
    for number in reversed(numbers(folder, "snapshot")):
        path = path_of(folder, "snapshot", number)
        snapshot = read(path, _contents(path))
        if snapshot is not None:
            check_head(path, snapshot.head, config)
            return snapshot
    return None


def _contents(path: Path) -> memoryview:
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) if path.stat().st_size else memoryview(b"")
