"""Who takes part: names, incarnations, heartbeats, and what each member has to be told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from transfer_queue.controller.errors import RequestError
from transfer_queue.messages import Register, ShardInfo

SHARD = "shard"


@dataclass(slots=True, eq=False)
class Member:
    name: str
    incarnation: int
    role: str
    host: str
    pid: int
    endpoints: dict[str, str]
    seen: float  # last message, seconds of the controller's clock
    alive: bool = True
    loaded: dict[str, int] = field(default_factory=dict)  # model -> version it computes with
    busy: dict[str, float] = field(default_factory=dict)
    cancelled: dict[tuple[int, int], int] = field(default_factory=dict)  # (gid, fence) -> revision that told it
    duty: str | None = None
    revision: int = 0  # of the last change that concerns this member alone

    @property
    def owner(self) -> str:
        return f"{self.name}#{self.incarnation}"


class Members:
    """Alive members by name. Incarnations count up for ever, so a late message of a dead one is always recognised."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._next: dict[str, int] = {}
        self.epoch = 0  # grows with every join, leave and death

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def find(self, name: str) -> Member | None:
        return self._members.get(name)

    def was_known(self, name: str) -> bool:
        return name in self._next

    def add(self, request: Register, now: float) -> Member:
        """A new incarnation; the caller has ended the old one."""
        incarnation = self._next.get(request.name, 0)
        self._next[request.name] = incarnation + 1
        member = Member(request.name, incarnation, request.role, request.host, request.pid, dict(request.endpoints), now)
        self._members[request.name] = member
        self.epoch += 1
        return member

    def remove(self, member: Member) -> None:
        del self._members[member.name]
        member.alive = False
        self.epoch += 1

    def check(self, name: str, incarnation: int, now: float) -> Member:
        """The alive member a message comes from; the message counts as a heartbeat."""
        member = self._members.get(name)
        if member is not None and member.incarnation == incarnation:
            member.seen = now
            return member
        if not self.was_known(name):
            raise RequestError("unknown_member", f"member={name!r} never registered: its request is not served; send Register first")
        current = "ended" if member is None else f"#{member.incarnation}"
        raise RequestError(
            "stale_incarnation",
            f"member={name!r} incarnation={incarnation}: the current one is {current}, so this one's leases were given to others and its "
            "request is not served; end this process, or register again",
        )

    def endpoints(self) -> dict[str, str]:
        """What members serve, shards apart."""
        return {key: url for member in self._members.values() if member.role != SHARD for key, url in member.endpoints.items()}

    def shards(self) -> list[ShardInfo]:
        infos = [
            ShardInfo(index=shard_index(member.name), endpoint=member.endpoints[SHARD], server_key=member.endpoints.get("server_key", ""))
            for member in self._members.values()
            if member.role == SHARD
        ]
        return sorted(infos, key=lambda info: info.index)


def shard_index(name: str) -> int:
    """`shard-3` → 3. Raises RequestError where the name has no trailing number."""
    digits = name[len(name.rstrip("0123456789")) :]
    if not digits:
        raise RequestError("bad_request", f"name={name!r} of a shard has no trailing number: slices name shards by it; call it shard-0, shard-1, …")
    return int(digits)


def check_register(request: Register, protocol: int) -> None:
    """Raises RequestError for a member that could not take part."""
    if request.protocol != protocol:
        raise RequestError(
            "bad_request",
            f"protocol={request.protocol} of {request.name!r} is not {protocol}: its messages would be misread, so it may not join; install "
            "the same version of transfer_queue everywhere",
        )
    if not request.name or "#" in request.name:
        raise RequestError("bad_request", f"name={request.name!r} is empty or contains '#', which separates name and incarnation; choose another")
    if request.role == SHARD:
        shard_index(request.name)
        if SHARD not in request.endpoints:
            raise RequestError(
                "bad_request",
                f"endpoints={sorted(request.endpoints)} of {request.name!r} lack {SHARD!r}: nobody could reach its bytes; name its URL",
            )
