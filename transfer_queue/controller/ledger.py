"""The ledger: groups counted by state. The one place where a group changes state, so that counts and the event log cannot drift apart."""

from __future__ import annotations

import numpy as np

from transfer_queue.controller.group import OPEN, STATES, Group
from transfer_queue.controller.moves import Moves
from transfer_queue.controller.runtime import Runtime
from transfer_queue.controller.store import Store
from transfer_queue.controller.tables import NEVER
from transfer_queue.messages import Event, State

RUN_END = "run_end"  # the one drop that nothing replaces
CODES: dict[State, int] = {state: code for code, state in enumerate(STATES)}  # ascending towards the end of a life: that way is progress


class Ledger:
    def __init__(self, topic: str, store: Store, runtime: Runtime) -> None:
        self._topic = topic
        self._store = store
        self._runtime = runtime
        self.counts: dict[str, int] = dict.fromkeys((*OPEN, "trained"), 0)  # dropped ones as "dropped:reason"

    @property
    def open(self) -> int:
        """Permits out: groups neither trained nor dropped."""
        counts = self.counts
        return counts["admitted"] + counts["generating"] + counts["complete"] + counts["leased"]

    @property
    def trained(self) -> int:
        return self.counts["trained"]

    @property
    def lives(self) -> int:
        """Groups ever admitted; a requeued prompt counts once a life."""
        return sum(self.counts.values())

    def admit(self, slots: np.ndarray, member: str, state: State = "admitted") -> None:
        """New groups, whose permits are out from now on."""
        self.counts[state] += len(slots)
        self._store.groups.state[slots] = CODES[state]
        self._runtime.touch()
        self._emit(slots, "", state, "", member, 0)

    def admit_one(self, slot: int, member: str, state: State = "admitted") -> None:
        """The same of one."""
        table = self._store.groups
        self.counts[state] += 1
        table.state[slot] = CODES[state]
        self._runtime.touch()
        self._emit_one(slot, "", state, "", member, 0)

    def move(self, group: Group, state: State, clock: int, reason: str = "", member: str = "") -> None:
        """`clock` is the topic's version before the change: clock - group version is the staleness of what is trained or dropped."""
        self.move_all(np.array([group.slot]), state, clock, reason, member)

    def move_all(self, slots: np.ndarray, state: State, clock: int, reason: str = "", member: str = "") -> None:
        """The same of several, in this order."""
        table = self._store.groups
        sources = table.state[slots]
        if len(sources) and (sources == sources[0]).all():
            self._move(slots, STATES[sources[0]], state, clock, reason, member)
            return
        for source in np.unique(sources):
            self._move(slots[sources == source], STATES[source], state, clock, reason, member)

    def _move(self, slots: np.ndarray, source: State, state: State, clock: int, reason: str, member: str) -> None:
        counted = f"dropped:{reason}" if state == "dropped" else state
        self.counts[source] -= len(slots)
        self.counts[counted] = self.counts.get(counted, 0) + len(slots)
        if source != state:
            self._store.groups.since[slots] = self._runtime.now()
        self._store.groups.state[slots] = CODES[state]
        if CODES[state] > CODES[source]:
            self._runtime.touch()
        self._emit(slots, source, state, reason, member, clock)

    def tell_all(self, reason: str) -> None:
        """An observer that has seen nothing of the open groups learns of them."""
        slots = self._store.all()
        states = self._store.groups.state[slots]
        for state in np.unique(states).tolist():
            self._emit(slots[states == state], "", STATES[state], reason, "", 0)

    def _emit_one(self, slot: int, source: str, state: State, reason: str, member: str, clock: int) -> None:
        table = self._store.groups
        gid, life, version, least = table.gid.item(slot), table.life.item(slot), table.version.item(slot), table.min_version.item(slot)
        data: dict[str, float | int | str] = {"life": life, "min_version": least}
        if state not in OPEN:
            started = Group(self._store, slot).started_version()
            tokens = max(table.tokens.item(slot), table.attempt_tokens.item(slot))
            data |= {"clock": clock, "rows": table.rows.item(slot), "tokens": tokens, "age": clock - (version if started is None else started)}
        self._runtime.emit_move(lambda t_s: Event(t_s, "group", self._topic, gid, source, state, reason, version, member, data))

    def _emit(self, slots: np.ndarray, source: str, state: State, reason: str, member: str, clock: int) -> None:
        if len(slots) == 1:
            self._emit_one(slots.item(0), source, state, reason, member, clock)
            return
        table = self._store.groups
        numbers = (table.gid[slots], table.life[slots], table.version[slots], table.min_version[slots])
        moves = Moves(self._topic, source, state, reason, member, clock, *numbers)
        if state not in OPEN:
            started = self._store.started_versions(slots)
            moves.rows, moves.tokens = table.rows[slots], np.maximum(table.tokens[slots], table.attempt_tokens[slots])
            moves.age = clock - np.where(started == NEVER, moves.versions, started)
        self._runtime.emit_moves(moves)
