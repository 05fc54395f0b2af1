"""The ledger: groups counted by state. The one place where a group changes state, so that counts and the event log cannot drift apart."""

from __future__ import annotations

from transfer_queue.controller.group import OPEN, Group
from transfer_queue.controller.runtime import Runtime
from transfer_queue.messages import State

RUN_END = "run_end"  # the one drop that nothing replaces
FORWARD: tuple[State, ...] = (*OPEN, "trained", "dropped")  # a move towards the end of this row is progress; one back (a lost producer) is not


class Ledger:
    def __init__(self, topic: str, runtime: Runtime) -> None:
        self._topic = topic
        self._runtime = runtime
        self.counts: dict[str, int] = dict.fromkeys((*OPEN, "trained"), 0)  # dropped ones as "dropped:reason"

    @property
    def open(self) -> int:
        """Permits out: groups neither trained nor dropped."""
        return sum(self.counts[state] for state in OPEN)

    @property
    def trained(self) -> int:
        return self.counts["trained"]

    @property
    def lives(self) -> int:
        """Groups ever admitted; a requeued prompt counts once a life."""
        return sum(self.counts.values())

    def admit(self, group: Group, member: str) -> None:
        self.counts["admitted"] += 1
        self._runtime.touch()
        self._emit(group, "", "", member, 0)

    def move(self, group: Group, state: State, clock: int, reason: str = "", member: str = "") -> None:
        """`clock` is the topic's version before the change: clock - group version is the staleness of what is trained or dropped."""
        source = group.state
        self.counts[source] -= 1
        counted = f"dropped:{reason}" if state == "dropped" else state
        self.counts[counted] = self.counts.get(counted, 0) + 1
        group.state = state
        group.open = state in OPEN
        if source != state:
            group.since = self._runtime.now()
        if FORWARD.index(state) > FORWARD.index(source):
            self._runtime.touch()
        self._emit(group, source, reason, member, clock)

    def _emit(self, group: Group, source: str, reason: str, member: str, clock: int) -> None:
        data: dict[str, float | int | str] = {"life": group.life, "min_version": group.min_version}
        if not group.open:
            started = group.started_version()
            data |= {
                "clock": clock,
                "rows": len(group.rows),
                "tokens": max(group.tokens(), group.attempt_tokens),
                "age": clock - (group.version if started is None else started),
            }
        self._runtime.emit(
            "group", topic=self._topic, gid=group.gid, src=source, dst=group.state, reason=reason, version=group.version, member=member, data=data
        )
