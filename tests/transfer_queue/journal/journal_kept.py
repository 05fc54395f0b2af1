"""A simulated run whose controller keeps a journal and is killed now and then, with clients that send again what has no reply."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import xxhash
from controller_world import Settings, World

from transfer_queue import messages as m
from transfer_queue.controller.core import Core, CoreConfig
from transfer_queue.controller.repeats import BITS, FIRST
from transfer_queue.frozen import pack
from transfer_queue.journal.recovery import Opened, open_journal, restore
from transfer_queue.journal.settings import JournalSettings
from transfer_queue.wire import encode

LOW = FIRST - 1


class Silent:
    def on_event(self, event: m.Event) -> None: ...


def state(core: Core) -> str:
    """A sum over everything that the state machine is."""
    packed = pack(core.freeze())
    total = xxhash.xxh3_64(packed.record)
    for array, shape in zip(packed.arrays, packed.shapes, strict=True):
        total.update(msgspec.msgpack.encode(shape) + array.tobytes())
    return total.hexdigest()


def kept_state(folder: Path, config: CoreConfig) -> str:
    """The same of what would come back."""
    past = restore(folder, config, Silent())
    assert past is not None
    return state(past.core)


class Kept:
    """What a server does around the state machine, and what its clients do when they lose it. In place of a `Core`."""

    def __init__(self, settings: JournalSettings, config: CoreConfig, observer: Any) -> None:
        self._settings, self._config, self._observer = settings, config, observer
        self.opened: Opened = open_journal(settings, config, observer)
        self._lines: dict[bytes, int] = {}  # connection → the number above its ids
        self._waiting: dict[bytes, dict[int, m.Request]] = {}  # connection → requests without a reply, by id
        self.delivered: list[tuple[bytes, m.Reply]] = []
        self.kill_next = ""  # "before": the controller is killed before it notes the next request; "after": when it has, before anything leaves
        self.kills = 0
        self.states: dict[int, str] | None = None  # bytes of the log → what the state machine was then, where it is asked for

    @property
    def core(self) -> Core:
        return self.opened.core

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)

    # ------------------------------------------------------------ the server

    def handle(self, connection: bytes, request: m.Request) -> None:
        line = self._lines.setdefault(connection, len(self._lines) + 1)
        number = (line << BITS) | (request.id & LOW)
        waiting = self._waiting.setdefault(connection, {})
        waiting[number] = msgspec.structs.replace(request, id=number)
        end, self.kill_next = self.kill_next, ""
        if end != "before":
            self._take_in(connection, number)
        if end:
            self.kill()
        self._deliver()

    def _take_in(self, connection: bytes, number: int) -> None:
        waiting = self._waiting[connection]
        request = msgspec.structs.replace(waiting[number], back=number - min(waiting))
        self.opened.journal.request(connection, encode(request), request)
        self.core.handle(connection, request)
        self.opened.journal.keep(self.core.outbox)

    def _deliver(self) -> None:
        for connection, reply in [*self.core.outbox, *self.core.repeated]:
            if self._waiting.get(connection, {}).pop(reply.id, None) is not None:
                self.delivered.append((connection, msgspec.structs.replace(reply, id=reply.id & LOW)))
        self.core.outbox.clear()
        self.core.repeated.clear()
        if self.states is not None:
            self.states[self.opened.journal._log.nbytes] = state(self.core)

    def tick(self) -> None:
        self.opened.journal.tick()
        self.core.tick()
        self.opened.journal.keep(self.core.outbox)
        self._deliver()

    def rest(self) -> None:
        self.opened.journal.rest()

    # ------------------------------------------------------------ its end, and its clients

    def kill(self) -> None:
        """As by kill -9, and start it again: everybody sends again what has no reply."""
        self.kills += 1
        self.leave()
        self.opened = open_journal(self._settings, self._config, self._observer)
        for connection, waiting in self._waiting.items():
            for number in sorted(waiting):
                self._take_in(connection, number)
        self._deliver()

    def settle(self) -> None:
        """No snapshot is on its way."""
        writing = self.opened.journal._writing
        if writing is not None:
            writing.wait(10.0)

    def leave(self) -> None:
        """The process is gone; what it had not written is too."""
        self.settle()  # its thread would go on in this process and remove files that a later start needs
        journal: Any = self.opened.journal
        if journal._syncer is not None:
            journal._syncer.close()
        journal._log.close()
        os.close(self.opened.holder)

    # ------------------------------------------------------------ what the world takes

    @property
    def outbox(self) -> list[tuple[bytes, m.Reply]]:
        return self.delivered

    @outbox.setter
    def outbox(self, value: list[tuple[bytes, m.Reply]]) -> None:
        self.delivered = value


class KeptWorld(World):
    """`kill`: chance, for each call, that the controller is killed on it."""

    def __init__(self, settings: Settings, folder: Path, kill: float = 0.0, snapshot_bytes: int = 1 << 30) -> None:
        self._kill_chance, self._journal = kill, JournalSettings(str(folder), snapshot_bytes=snapshot_bytes, replay_s=1e9)
        super().__init__(settings)

    def start(self, config: CoreConfig) -> Core:
        self.kept = Kept(self._journal, config, self.log)
        return self.kept  # type: ignore[return-value]

    @property
    def clock(self) -> Any:
        """The controller's present one."""
        return self.kept.opened.clock

    @clock.setter
    def clock(self, clock: Any) -> None:
        """The world's own is not used."""

    def call(self, actor: Any, request: m.Request, parked: int | None = None) -> m.Reply | None:
        if self.rng.random() < self._kill_chance:
            self.kept.kill_next = self.rng.choice(["before", "after"])
        return super().call(actor, request, parked)

    def step(self) -> None:
        self.kept.rest()
        super().step()
