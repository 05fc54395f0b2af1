"""The ledger, counted again from the event log alone, by code that shares nothing with the controller's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from transfer_queue.messages import Event

ENDED = ("trained", "dropped")
OPEN = ("admitted", "generating", "complete", "leased")

_decoder = msgspec.json.Decoder(Event)


class Inconsistent(Exception):
    """The log contradicts itself: what, and at which line."""


class Replay:
    """State of every group's current life. A life begins with src "" and ends as trained or dropped; a requeued group has several."""

    def __init__(self) -> None:
        self.lines = 0
        self.counts: Counter[str] = Counter()  # by state; dropped ones as "dropped:reason"
        self.states: dict[tuple[str, int], str] = {}  # (topic, gid) → state
        self.trained: set[tuple[str, int]] = set()
        self.replayed: Counter[tuple[str, int]] = Counter()  # trained once and, on top of later batches, so often again
        self._since_commit: Counter[str] = Counter()  # topic → groups replayed

    def apply(self, event: Event) -> None:
        """One line. Raises Inconsistent when the group was not where the line says it was."""
        self.lines += 1
        if event.kind == "group":
            self._move(event)
        elif event.kind == "replayed":
            self._replay(event)
        elif event.kind == "commit":
            self._commit(event)

    def _move(self, event: Event) -> None:
        group = (event.topic, event.gid)
        current = self.states.get(group, "")
        if event.src == "" and current in ("", "dropped"):
            current = ""  # a new life: the first, or that of a requeued prompt
        if event.src != current:
            move = f"{event.src!r} → {event.dst!r}"
            raise Inconsistent(f"line {self.lines}: group {event.gid} goes {move}, but it was {current!r}: a line is missing or doubled")
        self._enter(group, event)

    def _enter(self, group: tuple[str, int], event: Event) -> None:
        if event.src:
            self.counts[event.src] -= 1
        self.counts[f"dropped:{event.reason}" if event.dst == "dropped" else event.dst] += 1
        if event.dst == "trained":
            if group in self.trained:
                raise Inconsistent(f"line {self.lines}: group {event.gid} is trained a second time")
            self.trained.add(group)
        self.states[group] = event.dst

    def _replay(self, event: Event) -> None:
        """It is no step of a life: what was trained stays so."""
        group = (event.topic, event.gid)
        if group not in self.trained:
            raise Inconsistent(f"line {self.lines}: group {event.gid} is replayed, and was not trained before")
        self.replayed[group] += 1
        if event.data.get("times") != self.replayed[group]:
            raise Inconsistent(
                f"line {self.lines}: group {event.gid} is replayed for the {event.data.get('times')}. time, the log has {self.replayed[group]} lines "
                "that say so: a line is missing or doubled"
            )
        self._since_commit[event.topic] += 1

    def _commit(self, event: Event) -> None:
        told, found = event.data.get("replayed", 0), self._since_commit.pop(event.topic, 0)
        if told != found:
            raise Inconsistent(f"line {self.lines}: the commit says that {told} groups were replayed, the log has {found} lines that say so")

    def ledger(self) -> dict[str, int]:
        """Counts that are not 0."""
        return {state: count for state, count in sorted(self.counts.items()) if count}

    def still_open(self) -> list[tuple[int, str]]:
        """(gid, state) of the groups whose life has not ended."""
        return [(gid, state) for (_, gid), state in self.states.items() if state in OPEN]


def read_events(path: Path) -> Iterator[Event]:
    """Lines of an event log. Raises Inconsistent for one that does not decode (a line cut off by a crash included)."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield _decoder.decode(line)
            except msgspec.DecodeError as error:
                raise Inconsistent(f"line {number} of {path.name} is no event: {error}") from None


def whole_events(path: Path) -> Iterable[Event]:
    """Like `read_events`, but a last line without its end, as a killed writer leaves it, is left out."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield _decoder.decode(line)
