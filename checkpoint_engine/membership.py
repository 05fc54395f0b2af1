"""Who follows a publisher, and who of them may be in its broadcast group. Pure state: no sockets, time comes in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from checkpoint_engine.backends import CPU, Device
from checkpoint_engine.weights_id import WeightsId

SILENT_S = 3.0
"""A member not heard of for this long is not invited into a group; it is served by pull as soon as it speaks again."""
FORGET_S = 30.0
"""A member not heard of for this long is forgotten (its next sign of life is a join like any other)."""

MOST_MEMBERS = 4096


@dataclass
class Member:
    name: str  # unique per incarnation
    identity: bytes
    collective: bool
    seen: float
    suspect: bool = False  # did not answer an invitation; cleared by its next sign of life
    have: WeightsId | None = None
    device: Device = CPU


class Members:
    def __init__(self) -> None:
        self._members: dict[str, Member] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def __len__(self) -> int:
        return len(self._members)

    def heard(self, name: str, identity: bytes, collective: bool, have: WeightsId | None, now: float, device: Device = CPU) -> None:
        """A join or a sign of life."""
        self._members[name] = Member(name, identity, collective, now, have=have, device=device)

    def alive(self, name: str, now: float) -> None:
        if name in self._members:
            self._members[name].seen = now

    def suspect(self, name: str) -> None:
        if name in self._members:
            self._members[name].suspect = True

    def remove(self, name: str) -> None:
        self._members.pop(name, None)

    def silent(self, now: float) -> list[str]:
        """Members to be forgotten."""
        return [name for name, member in self._members.items() if now - member.seen >= FORGET_S]

    def identity(self, name: str) -> bytes | None:
        member = self._members.get(name)
        return member.identity if member else None

    def names(self) -> list[str]:
        return sorted(self._members)

    def eligible(self, now: float) -> frozenset[str]:
        """Members a group can be made of now."""
        fresh = (m for m in self._members.values() if m.collective and not m.suspect and now - m.seen < SILENT_S)
        return frozenset(member.name for member in fresh)

    def devices(self, names: Iterable[str]) -> dict[str, Device]:
        """What each of these members computes on."""
        return {name: self._members[name].device for name in names}
