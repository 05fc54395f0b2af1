"""How much of their time the workers of each role are busy, wait, or are paused: differences of the clocks that heartbeats carry."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

ACTIVITIES = ("busy", "wait", "paused")


class SharesMemory(msgspec.Struct, frozen=True):
    """What the next call of `Shares.update` goes by."""

    last: dict[str, dict[str, float]] = {}  # member incarnation → cumulative seconds by activity
    shares: dict[str, dict[str, float]] = {}


class Shares:
    """Differences since the last call. Heartbeats come once a second, so a role without news keeps the share it had."""

    def __init__(self, memory: SharesMemory | None = None) -> None:
        memory = memory or SharesMemory()
        self._last, self._shares = dict(memory.last), dict(memory.shares)

    @property
    def memory(self) -> SharesMemory:
        return SharesMemory(self._last, self._shares)

    def update(self, roles: Mapping[str, str], clocks: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
        """`roles`: member → role; `clocks`: member → cumulative seconds. Returns role → activity → share; the shares of a role sum to 1."""
        spent: dict[str, dict[str, float]] = {}
        for member, clock in clocks.items():
            now = {activity: clock.get(activity, 0.0) for activity in ACTIVITIES}
            before = self._last.get(member, dict.fromkeys(ACTIVITIES, 0.0))
            total = spent.setdefault(roles[member], dict.fromkeys(ACTIVITIES, 0.0))
            for activity in ACTIVITIES:
                total[activity] += now[activity] - before[activity]
            self._last[member] = now
        for role, total in spent.items():
            seconds = sum(total.values())
            if seconds > 0:
                self._shares[role] = {activity: round(total[activity] / seconds, 4) for activity in ACTIVITIES}
        self._last = {member: clock for member, clock in self._last.items() if member in clocks}
        return dict(self._shares)
