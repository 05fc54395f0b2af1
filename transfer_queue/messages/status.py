"""One snapshot of everything that is not tensor bytes, and the event log."""

from __future__ import annotations

from transfer_queue.messages.base import Record, Reply, Request, RunState
from transfer_queue.messages.members import ShardInfo
from transfer_queue.messages.replaying import ReplayStatus
from transfer_queue.messages.schema import TopicSpec
from transfer_queue.messages.stall import StallReport


class Status(Request, frozen=True):
    """One snapshot of everything that is not tensor bytes."""

    waits: bool = False  # with it: who waits for what since when; it looks at every open group and lease


class ConsumerStatus(Record, frozen=True):
    name: str
    done_rows: int
    leased_rows: int  # parts of ranks that wait for them included
    ready_rows: int
    waiting: list[str]  # members parked
    leases: int = 0  # handed out, neither answered nor run out
    oldest_lease_s: float | None = None  # age of the oldest of them; None: there is none
    expired_leases: int = 0  # that ran out, so far
    fallbacks: int = 0  # takes that its sampler could not order, served in order instead
    sampler_fault: str = ""  # why, the last time
    replay: ReplayStatus | None = None  # None: it declares none


class TopicStatus(Record, frozen=True):
    name: str
    version: int
    ledger: dict[str, int]  # groups by state; dropped by reason as "dropped:reason"
    permits: int
    capacity: int | None
    open: int
    prompts_waiting: int
    target: int | None
    reserved_bytes: int
    stored_rows: int
    consumers: list[ConsumerStatus]
    oldest_open: str  # gid, state, waiting for what, since when
    late: int = 0  # puts, closes and write-backs that came after their group ended or their lease was lost
    oldest_open_s: float | None = None  # how long the group that is open longest has been in its state; None: no group is open
    published: int | None = None  # newest version that was published; None: none
    over: bool = False  # the target is trained
    lost_attempts: int = 0  # groups that were handed out and came back undone: the producer died, or its lease ran out
    asking: dict[str, dict[str, float]] = {}  # stage → member → seconds since when it has asked in vain; stages and members that do
    spec: TopicSpec | None = None  # columns, consumers and window, as declared


class PartitionStatus(Record, frozen=True):
    """A keyed partition."""

    name: str
    keys: int
    columns: int
    nbytes: int  # of its cells
    tasks: dict[str, int] = {}  # task → rows that it may take now


class TrafficStatus(Record, frozen=True):
    """Since the controller's start."""

    requests: dict[str, int] = {}  # well-formed ones by kind
    refused: dict[str, int] = {}  # error replies by code
    cpu_s: float | None = None  # processor time of its thread; None: not measured


class StatusRecord(Record, frozen=True):
    state: RunState
    reason: str
    members: dict[str, str]  # "name#incarnation" -> role
    topics: list[TopicStatus]
    idle_s: float  # since the last progress
    stall_s: float = 0.0  # a run is stopped after so long without progress
    uptime_s: float = 0.0  # since the controller's start
    silent_s: dict[str, float] = {}  # role → since when the controller has heard nothing of one of its members, the longest
    shards: list[ShardInfo] = []
    traffic: TrafficStatus = TrafficStatus()
    partitions: list[PartitionStatus] = []


class OkStatus(Reply, frozen=True):
    status: StatusRecord
    waits: StallReport | None = None


class Event(Record, frozen=True):
    """One line of the append-only log: every change of the ledger, of versions and of membership."""

    t_s: float  # controller's monotonic clock, since its start
    kind: str  # "group" | "replayed" | "keyed" | "commit" | "published" | "member" | "report" | "topic" | "slow" | "stall" | "run"
    topic: str = ""
    gid: int = -1
    src: str = ""  # state left ("" = new)
    dst: str = ""  # state entered
    reason: str = ""
    version: int = -1
    member: str = ""
    data: dict[str, float | int | str] = {}
