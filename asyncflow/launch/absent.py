"""Workers that the controller counts as dead though their processes are there: stopped ones, above all. They hold a name that a successor needs."""

from __future__ import annotations

from collections.abc import Iterable

GRACE_S = 5.0  # a worker that was told that it is dead, or that left, ends by itself within this


class Absent:
    """Looks at the membership again and again; times are seconds of any monotonic clock."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._members: set[str] = set()  # whose present process was a member at one time
        self._since: dict[str, float] = {}  # who is none any more

    def look(self, processes: Iterable[str], members: set[str], now_s: float) -> list[str]:
        """Names, of the running `processes`, of those that have been no members for the whole grace though they were before: to be ended."""
        names = set(processes)
        self._members = (self._members | members) & names
        gone = self._members - members
        self._since = {name: self._since.get(name, now_s) for name in gone}
        return sorted(name for name, since_s in self._since.items() if now_s - since_s >= self._grace_s)

    def forget(self, name: str) -> None:
        """Its process ended: what comes under that name is another one."""
        self._members.discard(name)
        self._since.pop(name, None)
