"""The journal of a running controller: inputs in, pages out, and a snapshot when the log has become long."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from transfer_queue.controller.core import Core
from transfer_queue.controller.handlers import CHANGE_NOTHING, LOOKS
from transfer_queue.controller.server import LoopClock
from transfer_queue.journal import records
from transfer_queue.journal.logs import Head, Log
from transfer_queue.journal.observing import Later, kept
from transfer_queue.journal.pages import page
from transfer_queue.journal.records import Kind
from transfer_queue.journal.settings import JournalSettings
from transfer_queue.journal.snapshot import Writing
from transfer_queue.journal.syncing import Syncer
from transfer_queue.messages import OkCommitted, OkEmpty, OkKeyedTaken, OkPulled, OkTaken, Reply, Request, Watch
from transfer_queue.samplers.choice import Ask, Choice
from transfer_queue.wire import encode

HAND_OUT = (OkTaken, OkPulled, OkKeyedTaken)  # replies of which something is taken back when they do not come to anybody
SMALL = 640  # bytes more than it has that an input counts for: a small one costs as much time to be replayed
SHARE, DISK_SHARE = 0.05, 0.2  # of the time, at most about, that the loop begins snapshots, and that one is being written, however short replay_s
WAIT_S = 60.0  # for the last snapshot, at the end


class Journal:
    """`controller.inputs.Inputs`. Raises JournalError, out of any call, when it cannot be written."""

    def __init__(self, settings: JournalSettings, core: Core, clock: LoopClock, later: Later, log: Log, head: Head, work_s: float) -> None:
        """`log` is whole; `head` is its head, but for the start, which is this process's. `core` and `clock` are the server's,
        `later` observes the core.
        `work_s`: processor time that it took to take in what lies behind the last snapshot."""
        self._settings = settings
        self._core, self._clock, self._later = core, clock, later
        self._log, self._head = log, head
        self.in_groups = settings.sync == "always"
        self.life = head.start.life.to_bytes(4, "big")
        self._pieces: list[bytes] = []  # heads and payloads of inputs that are not written yet
        self._weight = log.nbytes
        self._work_s, self._worked = work_s, time.thread_time()  # since the last snapshot, and by when
        self._last_bytes, self._last_s = 0, 0.0  # of the last snapshot, and the work of beginning it
        self._least_s = 0.0  # of work before the next one
        self._writing: Writing | None = None
        self._syncer = None if self.in_groups else Syncer(log)
        core.choose_by(self.choice)

    # ------------------------------------------------------------ inputs

    def request(self, connection: bytes, frame: bytes, request: Request) -> None:
        kind = type(request)
        if kind in CHANGE_NOTHING or (kind in LOOKS and not self._core.is_beat(request)):
            return
        if kind is Watch and request.trace:  # type: ignore[attr-defined]
            frame = encode(msgspec.structs.replace(request, trace=b""))  # the observer's, and no part of the state
        self._note(Kind.REQUEST, connection, frame)

    def tick(self) -> None:
        self._note(Kind.TICK)

    def frozen(self, seconds: float) -> None:
        self._note(Kind.FROZEN, payload=records.seconds(seconds))

    def undelivered(self, connection: bytes, reply: Reply) -> None:
        taken_back = reply if isinstance(reply, HAND_OUT) else OkEmpty(id=reply.id)
        self._note(Kind.UNDELIVERED, connection, encode(taken_back))

    def unreachable(self, shard: str, cause: str) -> None:
        self._note(Kind.UNREACHABLE, shard.encode(), cause.encode())

    def restarted(self) -> None:
        """The controller is back: the first input of this start."""
        self._note(Kind.RESTARTED, payload=msgspec.msgpack.encode(self._head.start))

    def choice(self, ask: Ask) -> Choice:
        """Made while an input is taken in, it stands behind that, in the same page."""
        made = ask()
        self._note(Kind.CHOICE, payload=msgspec.msgpack.encode(made))
        return made

    def _note(self, kind: Kind, connection: bytes = b"", payload: bytes = b"") -> None:
        self._pieces += (records.head(kind, self._clock.now, connection, len(payload)), payload)

    # ------------------------------------------------------------ on the disk

    def keep(self, replies: list[tuple[bytes, Reply]]) -> None:
        if self._pieces:
            self._write()
        if self.in_groups or any(type(reply) is OkCommitted for _, reply in replies):
            self._sync()
        self._later.tell()

    def _sync(self) -> None:
        if self._syncer is None:
            self._log.sync()
        else:
            self._syncer.sync()

    def _write(self) -> None:
        body = b"".join(self._pieces)
        self._weight += len(body) + SMALL * (len(self._pieces) // 2)
        self._pieces.clear()
        self._log.write([page(body, (self._core.serials, self._core.emitted)), body])
        if self._syncer is not None:
            self._syncer.written()

    def rest(self) -> None:
        self.keep([])
        if self._writing is not None and not self._writing.done():
            return
        if self._writing is not None:
            self._least_s = max(self._last_s / SHARE, self._writing.took_s / DISK_SHARE)
            self._writing = None
        if (self._is_heavy() or self._is_long()) and self._core.settled:
            self.snapshot()

    def _is_heavy(self) -> bool:
        return self._weight > max(self._settings.snapshot_bytes, 2 * self._last_bytes)

    def _is_long(self) -> bool:
        """What an input costs depends on what it names and on what is there, so it is measured, as it was taken in: bytes tell little of it."""
        now = time.thread_time()
        self._work_s += now - self._worked
        self._worked = now
        return self._work_s > max(self._settings.replay_s, self._least_s)

    def snapshot(self) -> None:
        """Begin the next log where the state is now, and write that."""
        begun, folder = time.thread_time(), Path(self._settings.folder)
        kept(self._later.observer)  # what it has seen by now cannot be told again
        self._sync()
        self._head = msgspec.structs.replace(self._head, number=self._head.number + 1, now=self._clock.now)
        log = Log.create(folder, self._head)
        self._writing = Writing(folder, self._head, self._core.freeze())
        if self._syncer is not None:
            self._syncer.turn_to(log)
        self._log.close()
        self._log, self._weight, self._last_bytes = log, 0, self._writing.nbytes
        self._worked = time.thread_time()
        self._work_s, self._last_s = 0.0, self._worked - begun

    def close(self) -> None:
        """After the last input. What was noted is on the disk."""
        self.keep([])
        self._sync()
        if self._writing is not None:
            self._writing.wait(WAIT_S)
        if self._syncer is not None:
            self._syncer.close()
        self._log.close()
