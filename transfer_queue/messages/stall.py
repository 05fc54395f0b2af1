"""Who waits for what, since when, and who is to blame: the report of a run that makes no progress (design invariant 11), also asked for live.

Times are ages in seconds at the moment of the report; None: never, or not measured.
"""

from __future__ import annotations

from transfer_queue.messages.base import Record


class LeaseWait(Record, frozen=True):
    """Work that was handed out and is not done."""

    lease: int
    member: str  # "name#incarnation"
    age_s: float  # since it was handed out
    rows: int
    gids: list[int]  # the first few
    lapsed: bool = False  # it ran out: its rows are ready for others, though what its owner still writes first is taken in


class StageWait(Record, frozen=True):
    """One stage of a topic: the source, the producer of rows, or a consumer."""

    stage: str
    ready_rows: int  # rows (source: prompts that wait, producer: groups that lost theirs) that nobody has taken
    leases: list[LeaseWait]
    waiting: dict[str, float]  # member → age of its first unanswered request
    members: list[str]  # who serves it and is alive
    gone: dict[str, float]  # member that served it and ended → age of its end
    progress_s: float | None  # age of its last work


class GroupWait(Record, frozen=True):
    """An open group, and what it waits for."""

    gid: int
    version: int
    state: str
    since_s: float  # in this state
    waits_for: str  # e.g. "columns ['rewards'] of rows [0, 1] from stage 'reward'"
    owners: list[str]  # members that owe it


class AdmissionWait(Record, frozen=True):
    """Whether one more prompt may be handed out."""

    permits: int
    prompts: int  # waiting
    bound: str  # "" when one may be handed out now; else why not: window, bytes, prompts, count, min_version, duty, done


class TopicWait(Record, frozen=True):
    topic: str
    version: int  # committed
    published: int | None
    committed_s: float | None  # age of the last commit
    ledger: dict[str, int]
    oldest: GroupWait | None  # the open group of the oldest version outside the trainer's batch, else in it
    admission: AdmissionWait
    stages: list[StageWait]


class MemberWait(Record, frozen=True):
    member: str
    role: str
    heard_s: float
    activity: str  # "busy" | "wait" | "paused": all its time went there for `activity_s`; "" when that is not known
    activity_s: float
    doing: str  # what its process says it does now; "" where that cannot be read
    loaded: dict[str, int]  # model → version
    duty: str | None
    duty_s: float | None
    waits: dict[str, float]  # parked request, e.g. "Take train" → its age


class Blame(Record, frozen=True):
    """What the rest waits for."""

    stage: str  # where it does not go on
    members: list[str]  # "name#incarnation", the likeliest first; empty: nobody serves the stage
    gid: int  # the group that shows it, -1: none
    waits_for: str
    since_s: float
    verdict: str  # one sentence: stage, members, group, what it waits for, since when, and what to do


class StallReport(Record, frozen=True):
    idle_s: float  # since the last progress
    stall_s: float  # after which the run is stopped
    blame: Blame
    topics: list[TopicWait]
    members: list[MemberWait]

    @property
    def verdict(self) -> str:
        return self.blame.verdict
