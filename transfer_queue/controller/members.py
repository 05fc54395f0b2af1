"""Who takes part: names, incarnations, heartbeats, and what each member has to be told."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from transfer_queue.controller.errors import RequestError, bad
from transfer_queue.messages import Record, Register, ShardInfo
from transfer_queue.messages.members import MAX_TRACE_BYTES

SHARD = "shard"
ACTIVITIES = ("busy", "wait", "paused")  # keys of `Watch.busy` that share out a member's time
MAX_NAMES = 1 << 14  # names a run may ever see: names are stable across restarts, so that more of them are a client gone wild
MAX_ENTRIES = 64  # endpoints or loaded models of one member: every directive carries them to everybody
MOST_WORD = 256  # characters of a role, a host, a model, an endpoint, a reason: status, directives and events carry them to everybody
_NAME = re.compile(r"[^#\s]{1,128}")
_URL = re.compile(r"tcp://(\[[^\]\s]+\]|[^:/\s]+):([0-9]{1,5})|(ipc|inproc)://\S+")


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
    epochs: dict[str, int] = field(default_factory=dict)  # model -> epoch of that version; without: the one in which it was made
    busy: dict[str, float] = field(default_factory=dict)
    activity: str = ""  # what alone grew in `busy` at its last heartbeat: it does that without a break; "" when it changed, or never told
    activity_since: float = 0.0  # seconds of the controller's clock
    cancelled: dict[tuple[int, int], int] = field(default_factory=dict)  # (gid, fence) -> revision that told it
    duty: str | None = None
    duty_since: float = 0.0  # when it was given, seconds of the controller's clock
    revision: int = 0  # of the last change that concerns this member alone
    joined_by: int = 0  # id of its Register

    @property
    def owner(self) -> str:
        return f"{self.name}#{self.incarnation}"

    def spent(self, busy: dict[str, float], now: float) -> None:
        """Take in its activity clock. A heartbeat comes from a thread of its own, so it comes although the member's work hangs: what tells is that
        one activity has taken all the time since some moment."""
        grown = [name for name in ACTIVITIES if busy.get(name, 0.0) > self.busy.get(name, 0.0)]
        activity = grown[0] if len(grown) == 1 else ""
        if activity != self.activity:
            self.activity, self.activity_since = activity, now
        self.busy = dict(busy)


@dataclass(frozen=True, slots=True)
class Ended:
    """The last that is known of a member that is no more."""

    owner: str
    role: str
    how: str  # died | left | replaced
    cause: str
    at: float  # seconds of the controller's clock


class FrozenMembers(Record, frozen=True):
    """What a snapshot keeps."""

    members: list[Member]
    incarnations: dict[str, int]  # next one, by name
    ended: dict[str, Ended]
    epoch: int
    roster: int


class Members:
    """Alive members by name. Incarnations count up for ever, so a late message of a dead one is always recognised."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._next: dict[str, int] = {}
        self.ended: dict[str, Ended] = {}  # by name, those whose name nobody has now
        self.epoch = 0  # grows with every join, leave and death
        self.roster = 0  # the same of shards

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
        member = Member(request.name, incarnation, request.role, request.host, request.pid, dict(request.endpoints), now, joined_by=request.id)
        self._members[request.name] = member
        self.ended.pop(request.name, None)
        self._count(member)
        return member

    def remove(self, member: Member, how: str, cause: str, now: float) -> None:
        del self._members[member.name]
        self.ended[member.name] = Ended(member.owner, member.role, how, cause, now)
        member.alive = False
        self._count(member)

    def _count(self, member: Member) -> None:
        self.epoch += 1
        self.roster += member.role == SHARD

    def skip_incarnations(self, count: int) -> None:
        self._next = {name: incarnation + count for name, incarnation in self._next.items()}

    def check(self, name: str, incarnation: int, now: float) -> Member:
        """The alive member a message comes from; the message counts as a heartbeat."""
        member = self.of(name, incarnation)
        member.seen = now
        return member

    def of(self, name: str, incarnation: int) -> Member:
        """The alive member. Raises RequestError where there is none."""
        member = self._members.get(name)
        if member is not None and member.incarnation == incarnation:
            return member
        if not self.was_known(name):
            raise RequestError("unknown_member", f"member={name!r} never registered: its request is not served; send Register first")
        current, ended = "ended" if member is None else f"#{member.incarnation}", self.ended.get(name)
        if ended is not None and ended.cause:
            current += f" ({ended.cause})"
        raise RequestError(
            "stale_incarnation",
            f"member={name!r} incarnation={incarnation}: the current one is {current}, so this one's leases were given to others and its "
            "request is not served; end this process, or register again, and `keep_alive` where it computes for longer than heartbeat_s",
        )

    def freeze(self) -> FrozenMembers:
        return FrozenMembers(list(self), self._next, self.ended, self.epoch, self.roster)

    def thaw(self, frozen: FrozenMembers) -> None:
        self._members = {member.name: member for member in frozen.members}
        self._next, self.ended, self.epoch, self.roster = frozen.incarnations, frozen.ended, frozen.epoch, frozen.roster

    def endpoints(self) -> dict[str, str]:
        """What members serve, shards apart."""
        return {key: url for member in self._members.values() if member.role != SHARD for key, url in member.endpoints.items()}

    def refuse_join(self, request: Register) -> None:
        """Raises RequestError where the member would be one too many, or would be taken for another."""
        if not self.was_known(request.name) and len(self._next) >= MAX_NAMES:
            raise bad(
                f"name={request.name!r} would be the {MAX_NAMES + 1}th of this run, which remembers every name to fence its incarnations: it may not "
                "join; restart under a stable name (rollout-0) instead of a new one each time"
            )
        if request.role != SHARD:
            return
        index = shard_index(request.name)
        for member in self._members.values():
            if member.role == SHARD and member.name != request.name and shard_index(member.name) == index:
                raise bad(
                    f"name={request.name!r}: shard {index} is {member.owner} already, and slices name shards by number: readers would get other "
                    "bytes; choose another number"
                )

    def shards(self) -> list[ShardInfo]:
        infos = [
            ShardInfo(shard_index(member.name), member.endpoints[SHARD], member.endpoints.get("server_key", ""), member.incarnation)
            for member in self._members.values()
            if member.role == SHARD
        ]
        return sorted(infos, key=lambda info: info.index)


def shard_index(name: str) -> int:
    """`shard-3` → 3. Raises RequestError where the name has no trailing number, or none that a slice could carry."""
    digits = name[len(name.rstrip("0123456789")) :]
    if not 0 < len(digits) <= 9:
        raise bad(f"name={name!r} of a shard has no trailing number of at most 9 digits: slices name shards by it; call it shard-0, shard-1, …")
    return int(digits)


def check_register(request: Register, protocol: int) -> None:
    """Raises RequestError for a member that could not take part."""
    if request.protocol != protocol:
        raise bad(
            f"protocol={request.protocol} of {request.name!r} is not {protocol}: its messages would be misread, so it may not join; install "
            "the same version of transfer_queue everywhere"
        )
    if not _NAME.fullmatch(request.name) or not request.name.isprintable():
        raise bad(
            f"name={request.name[:128]!r} is empty, longer than 128 characters, or contains a blank, what cannot be printed, or '#', which separates "
            "name and incarnation: it may not join; choose another"
        )
    check_word("role", request.role)
    check_word("host", request.host)
    check_entries("endpoints", request.endpoints)
    check_entries("URLs of endpoints", request.endpoints.values())
    if request.role == SHARD:
        _check_shard(request)


def check_entries(what: str, entries: Collection[str]) -> None:
    """Raises RequestError for more endpoints or loaded models than a member has, or such as nobody could read."""
    if len(entries) > MAX_ENTRIES:
        raise bad(f"{what}: {len(entries)} entries exceed {MAX_ENTRIES}, what one member may tell everybody: nothing was taken in; name fewer")
    for entry in entries:
        check_word(what, entry)


def check_word(what: str, word: str) -> None:
    """Raises RequestError for what everybody would be shown, and nobody could read."""
    if len(word) > MOST_WORD:
        rule = f"has {len(word)} characters, more than {MOST_WORD}"
        raise bad(f"{what}={word[:64]!r}… {rule}: everybody is shown it, nothing was taken in; say it shorter")
    if not word.isprintable():
        raise bad(f"{what}={word!r} contains what cannot be printed: everybody is shown it, nothing was taken in; write it in plain characters")


def check_trace(trace: bytes) -> None:
    """Raises RequestError for a recording that would hold up everybody else's requests."""
    if len(trace) > MAX_TRACE_BYTES:
        raise bad(f"trace: {len(trace)} bytes exceed {MAX_TRACE_BYTES}, the most a heartbeat may carry: nothing was taken in; record coarser")


def _check_shard(request: Register) -> None:
    """An address that cannot be connected to is refused here: every member connects to it, the controller too."""
    shard_index(request.name)
    url, key = request.endpoints.get(SHARD), request.endpoints.get("server_key", "")
    if url is None:
        raise bad(f"endpoints={sorted(request.endpoints)} of {request.name!r} lack {SHARD!r}: nobody could reach its bytes; name its URL")
    found = _URL.fullmatch(url)
    if found is None or int(found[2] or 1) not in range(1, 1 << 16) or len(key) not in (0, 40):
        raise bad(
            f"endpoints of {request.name!r}: {SHARD}={url[:128]!r} is no tcp://host:port, ipc:// or inproc:// address, or server_key={key[:128]!r} "
            "is no Z85 key of 40 characters: nobody could reach its bytes, so it may not join; announce what `bind` returned"
        )
