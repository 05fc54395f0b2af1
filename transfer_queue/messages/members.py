"""Joining, heartbeats, desired state, leaving: what members and the controller say about the run itself."""

from __future__ import annotations

from transfer_queue.messages.base import PROTOCOL, Record, Reply, Request, RunState
from transfer_queue.messages.places import ModelVersion
from transfer_queue.messages.schema import TopicSpec

MAX_TRACE_BYTES = 1 << 16


class Register(Request, frozen=True):
    """Join. `name` is stable across restarts (rollout-0); a new incarnation of a name ends every lease of the old one."""

    name: str
    role: str
    pid: int
    host: str
    protocol: int = PROTOCOL
    endpoints: dict[str, str] = {}  # what this member serves, e.g. {"publisher:policy": "tcp://127.0.0.1:4711"}


class ShardInfo(Record, frozen=True):
    index: int
    endpoint: str
    server_key: str = ""  # CURVE public key (Z85), "" without CURVE
    life: int = 0  # its incarnation: blocks of another one of this index are not here


class OkRegistered(Reply, frozen=True):
    member: str
    incarnation: int
    config: bytes  # the resolved configuration of the run, opaque to the queue
    topics: list[TopicSpec]
    shards: list[ShardInfo]
    roster: int = -1  # the number of `shards`
    comeback_s: float = 0.0  # how long a member waits for a controller that is gone; 0: it does not come back
    heartbeat_s: float = 0.0  # a member that says nothing for so long is dead to the controller; 0: it may be silent


class Roster(Request, frozen=True):
    """Which shards there are: replied when they are others than at the number `known`, or after `wait_s`."""

    member: str
    incarnation: int
    known: int = -1
    wait_s: float = 0.0


class OkRoster(Reply, frozen=True):
    number: int  # grows with every shard that joins or ends
    shards: list[ShardInfo]


class Watch(Request, frozen=True):
    """Heartbeat and desired state in one: replied at once when the directive is newer than `seen`, else when it changes or after `wait_s`."""

    member: str
    incarnation: int
    seen: int = -1  # revision of the last directive the member has
    loaded: dict[str, int] = {}  # model -> version it computes with
    epochs: dict[str, int] = {}  # model -> epoch of that version; without: the one in which it was made
    busy: dict[str, float] = {}  # seconds since start in "busy", "wait", "paused" (cumulative), gauges of the role
    duty_done: str | None = None  # a duty just finished
    endpoints: dict[str, str] = {}  # what this member serves besides what it registered with
    trace: bytes = b""  # what it recorded of itself since the last one, at most MAX_TRACE_BYTES, opaque to the queue; consumed on arrival
    wait_s: float = 1.0


class Directive(Record, frozen=True):
    """Desired state. Workers reconcile; nothing is called on them."""

    revision: int
    state: RunState
    reason: str = ""
    warning: str = ""  # for people: the run has made no progress for half the time after which it would be stopped, and why
    duty: str | None = None  # "evaluate": finish what you have, take nothing new, evaluate with the loaded weights
    weights: dict[str, ModelVersion] = {}  # newest published, by model
    versions: dict[str, int] = {}  # newest committed, by model
    endpoints: dict[str, str] = {}  # e.g. where the publisher of a model answers
    members: int = 0  # membership epoch: grows with every join, leave and death
    alive: list[str] = []  # "name#incarnation" of the members now
    cancelled: list[tuple[int, int]] = []  # (gid, fence) of attempts this member held that were dropped since its last directive


class OkDirective(Reply, frozen=True):
    directive: Directive


class Failed(Request, frozen=True):
    """A worker raised: the run ends and carries this traceback."""

    member: str
    incarnation: int
    error: str  # one line
    traceback: str


class Leave(Request, frozen=True):
    member: str
    incarnation: int


class MemberDead(Request, frozen=True):
    """Death notice from whoever saw the process end (the launcher)."""

    member: str
    incarnation: int  # -1: whichever is current
    cause: str
    fatal: bool = False  # the role cannot be restarted: the run stops
    pid: int = -1  # of the process that ended, where it need not be the member's: of another than registered it nothing changes. -1: it is


class Report(Request, frozen=True):
    """A fact for the event log and the run's record (evaluation result, exported weights, sync phases)."""

    member: str
    incarnation: int
    kind: str
    data: dict[str, float | int | str]


class Drain(Request, frozen=True):
    """Hand nothing new out: every directive becomes `drain`, and who has work finishes it. `Stop` may follow; nothing undoes it."""

    reason: str


class Stop(Request, frozen=True):
    """Ask the run to end: every directive becomes `stop`."""

    reason: str
