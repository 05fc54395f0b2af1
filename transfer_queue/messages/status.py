"""One snapshot of everything that is not tensor bytes, and the event log."""

from __future__ import annotations

from transfer_queue.messages.base import Record, Reply, Request, RunState
from transfer_queue.messages.stall import StallReport


class Status(Request, frozen=True):
    """One snapshot of everything that is not tensor bytes."""

    waits: bool = False  # with it: who waits for what since when; it looks at every open group and lease


class ConsumerStatus(Record, frozen=True):
    name: str
    done_rows: int
    leased_rows: int
    ready_rows: int
    waiting: list[str]  # members parked
    fallbacks: int = 0  # takes that its sampler could not order, served in order instead
    sampler_fault: str = ""  # why, the last time


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


class StatusRecord(Record, frozen=True):
    state: RunState
    reason: str
    members: dict[str, str]  # "name#incarnation" -> role
    topics: list[TopicStatus]
    idle_s: float  # since the last progress


class OkStatus(Reply, frozen=True):
    status: StatusRecord
    waits: StallReport | None = None


class Event(Record, frozen=True):
    """One line of the append-only log: every change of the ledger, of versions and of membership."""

    t_s: float  # controller's monotonic clock, since its start
    kind: str  # "group" | "commit" | "published" | "member" | "report" | "topic" | "slow" | "stall" | "run"
    topic: str = ""
    gid: int = -1
    src: str = ""  # state left ("" = new)
    dst: str = ""  # state entered
    reason: str = ""
    version: int = -1
    member: str = ""
    data: dict[str, float | int | str] = {}
