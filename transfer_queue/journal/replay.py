"""Inputs back into the state machine, which becomes what it was after them. What it says meanwhile was said before."""

from __future__ import annotations

from pathlib import Path

import msgspec

from transfer_queue.controller.core import Core
from transfer_queue.controller.server import LoopClock
from transfer_queue.journal import records
from transfer_queue.journal.errors import JournalError
from transfer_queue.journal.pages import Page, pages
from transfer_queue.journal.records import Input, Kind, Start
from transfer_queue.wire import decode_reply, decode_request


class Replay:
    def __init__(self, core: Core, clock: LoopClock, start: Start) -> None:
        """`start`: of the controller that began the log."""
        self._core, self._clock = core, clock
        self.start = start  # the newest

    def log(self, path: Path, file: memoryview) -> int:
        """Every whole page but the first, its head; returns where the last one ends. Raises JournalError where the state takes another way."""
        end = 0
        for number, found in enumerate(pages(file)):
            if number:
                self._page(found, f"{path}, page {number}")
            end = found.end
        return end

    def _page(self, found: Page, where: str) -> None:
        for each in records.inputs(found.body):
            self._clock.now = each.now
            self._apply(each)
            self._drain()
        if (self._core.serials, self._core.emitted) != found.counts:
            raise JournalError(
                f"{where}: the state machine has counted {self._core.serials}, {self._core.emitted} where it had counted {found.counts}: the same "
                "inputs led elsewhere, so nothing of this journal can be believed. This is a fault of ours: report it, and begin the run from its "
                "last checkpoint"
            )

    def _apply(self, each: Input) -> None:
        core = self._core
        match each.kind:
            case Kind.REQUEST:
                core.handle(each.connection, decode_request(each.payload))
            case Kind.TICK:
                core.tick()
            case Kind.FROZEN:
                core.frozen(records.seconds_of(each.payload))
            case Kind.UNDELIVERED:
                core.undelivered(each.connection, decode_reply(each.payload))
            case Kind.UNREACHABLE:
                name = each.connection.decode()
                for shard in [member for member in core.members if member.name == name]:
                    core.unreachable(shard, bytes(each.payload).decode())
            case Kind.RESTARTED:
                self.start = msgspec.msgpack.decode(each.payload, type=Start)
                core.restarted(self.start.silent_s, self.start.undone)

    def _drain(self) -> None:
        """Replies went out before; what shards were told and have not confirmed is kept elsewhere."""
        core = self._core
        core.outbox.clear()
        core.repeated.clear()
        core.frees.clear()
        core.sweeps.clear()
