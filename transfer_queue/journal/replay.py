"""Inputs back into the state machine, which becomes what it was after them. What it says meanwhile was said before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from transfer_queue.controller.core import Core
from transfer_queue.controller.server import LoopClock
from transfer_queue.journal import records
from transfer_queue.journal.errors import JournalError
from transfer_queue.journal.pages import Page, pages
from transfer_queue.journal.records import Input, Kind, Start
from transfer_queue.samplers.choice import Ask, Choice, asked
from transfer_queue.wire import decode_reply, decode_request


class Replay:
    def __init__(self, core: Core, clock: LoopClock, start: Start) -> None:
        """`start`: of the controller that began the log."""
        self._core, self._clock = core, clock
        self.start = start  # the newest
        self._choices: list[Choice] = []  # made while the present input was taken in
        self._asked = 0  # how many of them were asked for

    def log(self, path: Path, file: memoryview) -> int:
        """Every whole page but the first, its head; returns where the last one ends. Raises JournalError where the state takes another way."""
        end = 0
        self._core.choose_by(self._choice)
        for number, found in enumerate(pages(file)):
            if number:
                self._page(found, f"{path}, page {number}")
            end = found.end
        self._core.choose_by(asked)
        return end

    def _page(self, found: Page, where: str) -> None:
        for each, choices in _with_choices(records.inputs(found.body)):
            self._clock.now = each.now
            self._choices, self._asked = choices, 0
            self._apply(each)
            if self._asked != len(choices):
                raise _led_elsewhere(where, f"asked samplers {self._asked} times where it had asked {len(choices)} times")
            self._drain()
        counts = self._core.serials, self._core.emitted
        if counts != found.counts:
            raise _led_elsewhere(where, f"counted {', '.join(map(str, counts))} where it had counted {', '.join(map(str, found.counts))}")

    def _choice(self, ask: Ask) -> Choice:
        """As it was: nobody is asked."""
        self._asked += 1
        return self._choices[self._asked - 1] if self._asked <= len(self._choices) else Choice(fault="it was not asked before")

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


def _with_choices(inputs: Iterable[Input]) -> Iterator[tuple[Input, list[Choice]]]:
    """Each input but choices, with those that were made while it was taken in."""
    cause: Input | None = None
    choices: list[Choice] = []
    for each in inputs:
        if each.kind is Kind.CHOICE:
            choices.append(msgspec.msgpack.decode(each.payload, type=Choice))
            continue
        if cause is not None:
            yield cause, choices
        cause, choices = each, []
    if cause is not None:
        yield cause, choices


def _led_elsewhere(where: str, what: str) -> JournalError:
    return JournalError(
        f"{where}: the state machine has {what}: the same inputs led elsewhere, so nothing of this journal can be believed. This is a fault of ours: "
        "report it, and begin the run from its last checkpoint"
    )
