"""How the groups that were trained differ from those that were dropped: dropping what is old must not quietly drop what is long."""

from __future__ import annotations

import msgspec

from transfer_queue.messages import Event

RUN_END = "run_end"  # what was left over at the end tells nothing about staleness


class Outcome(msgspec.Struct, frozen=True):
    """Groups with the same end."""

    groups: int
    tokens_mean: float  # generated for a group, all its rows together
    age_mean: float  # versions: the trainer's at the end of the group − that of its oldest token


class Outcomes:
    """Sums over group events, by how the group ended."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}

    def apply(self, event: Event) -> None:
        if event.kind != "group" or event.dst not in ("trained", "dropped") or event.reason == RUN_END:
            return
        sums = self._sums.setdefault(event.dst, [0.0, 0.0, 0.0])
        for place, value in enumerate((1, event.data["tokens"], event.data["age"])):
            sums[place] += float(value)

    def of(self, end: str) -> Outcome | None:
        """None where no group ended so."""
        if end not in self._sums:
            return None
        groups, tokens, age = self._sums[end]
        return Outcome(int(groups), tokens / groups, age / groups)
