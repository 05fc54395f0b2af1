"""Every record that crosses a socket of the queue, in one place.

A client talks to the controller with one `Request` and gets exactly one reply to it (an `Ok*` record or `ErrorReply`), possibly later: requests that
cannot be met yet are *parked* by the controller until they can, until `wait_s` is over (the reply is then empty), until a `Cancel` names them, or
until their member's incarnation ends (the reply is then the error `stale_incarnation`).
Shards carry tensor bytes and are reached by the client itself: no caller ever names a shard or a row index.

Units: seconds (`*_s`), bytes (`*_bytes`), groups unless a field says rows. Versions count committed global batches of the topic's model; 0 is a
value.
"""

from __future__ import annotations

from typing import Literal

import msgspec

PROTOCOL = 1

Unit = Literal["row", "group"]
State = Literal["admitted", "generating", "complete", "leased", "trained", "dropped"]
Policy = Literal["wait", "drop"]
Sampler = Literal["in_order", "oldest_first"]  # `unit: group` on a consumer is the whole-groups sampler
RunState = Literal["run", "drain", "pause", "stop"]
Kind = Literal["scalar", "per_token", "blob"]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of plain records inside messages."""


# ---------------------------------------------------------------- schema


class Column(Record, frozen=True):
    """One typed column of a topic. A (row, column) is written once."""

    name: str
    dtype: str  # numpy name, or "bfloat16" / "float8_e4m3fn" / "float8_e5m2": bits travel, they are never converted
    kind: Kind  # scalar: one value a row; per_token: a 1-d run of values a row; blob: bytes (dtype "uint8")
    producer: str  # name of the stage that writes it
    shared: bool = False  # one value for the whole group, stored once (written with the prompt)
    optional: bool = False  # a row is ready for a consumer without it


class Consumer(Record, frozen=True):
    """One stage's view of a topic: what it must see before it can have a row, and how it is served."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    unit: Unit = "row"
    terminal: bool = False  # its acknowledgement is `Commit`; its leases end only with its incarnation
    sampler: Sampler = "oldest_first"
    needs_weights: bool = False  # take only rows whose newest token version <= the taker's loaded version


class Window(Record, frozen=True):
    """The staleness window (flow control) of a topic: permits, clock, policy.

    capacity = (staleness + 1) * batch open groups; `staleness=None` means bounded by bytes only.
    """

    batch: int
    staleness: int | None
    policy: Policy = "wait"
    budget_bytes: int = 1 << 32
    group_bytes: int = 1 << 16  # worst case of one group, reserved at admission
    requeue: bool = False  # policy drop: hand the dropped prompt out again instead of the source's next one


class TopicSpec(Record, frozen=True):
    name: str
    model: str  # whose commits are this topic's clock
    columns: tuple[Column, ...]
    consumers: tuple[Consumer, ...]
    window: Window
    prompts_bound: int = 256  # most prompts that wait for admission; a put beyond it parks
    rows_per_group: int = 1  # trajectories a producer is asked for

    def digest(self) -> str:
        """Hash of the schema, checked in the handshake. Stable across processes."""
        import hashlib

        return hashlib.sha256(msgspec.msgpack.encode((self.columns, self.consumers))).hexdigest()[:16]


# ---------------------------------------------------------------- where bytes are


class Slice(Record, frozen=True, array_like=True):
    """One row's values of one column inside a shard: segment `block`, elements [start, stop)."""

    shard: int
    block: int  # unique for ever within its shard
    start: int  # in elements of the column's dtype (bytes for a blob)
    stop: int


class ModelVersion(Record, frozen=True, array_like=True):
    """Identity of weights as the queue sees it; ordered by (epoch, version)."""

    model: str
    epoch: int
    version: int
    digest: str = ""


# ---------------------------------------------------------------- requests

class Request(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base: `id` is unique within the client's connection."""

    id: int = 0


class Register(Request, frozen=True):
    """Join. `name` is stable across restarts (rollout-0); a new incarnation of a name ends every lease of the old one."""

    name: str
    role: str
    pid: int
    host: str
    protocol: int = PROTOCOL
    endpoints: dict[str, str] = {}  # what this member serves, e.g. {"publisher:policy": "tcp://127.0.0.1:4711"}


class Watch(Request, frozen=True):
    """Heartbeat and desired state in one: replied at once when the directive is newer than `seen`, else when it changes or after `wait_s`."""

    member: str
    incarnation: int
    seen: int = -1  # revision of the last directive the member has
    loaded: dict[str, int] = {}  # model -> version it computes with
    busy: dict[str, float] = {}  # seconds since start in "busy", "wait", "paused" (cumulative), gauges of the role
    duty_done: str | None = None  # a duty just finished
    endpoints: dict[str, str] = {}  # what this member serves besides what it registered with
    wait_s: float = 1.0


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


class PromptPut(Record, frozen=True):
    """One prompt: becomes the group `gid` when it is handed out. `columns` are the group's shared columns."""

    gid: int  # position in the source's endless order (epoch * len(data) + index): unique, dense, the canonical order
    columns: dict[str, Slice]
    rows: int | None = None  # trajectories wanted; None: the topic's rows_per_group


class PutPrompts(Request, frozen=True):
    """Idempotent by gid. Parks while `prompts_bound` prompts wait. The cursor is stored with the put, atomically."""

    topic: str
    member: str
    incarnation: int
    prompts: list[PromptPut]
    cursor: int  # the next gid the source would put: where a restarted source goes on
    wait_s: float = 30.0


class Demand(Request, frozen=True):
    """Source: parks until more prompts are wanted or the topic is done."""

    topic: str
    member: str
    incarnation: int
    wait_s: float = 30.0


class ClosePrompts(Request, frozen=True):
    """The run's total: `count` groups are to be trained. Replacements of dropped groups come on top. Idempotent."""

    topic: str
    count: int


class Pull(Request, frozen=True):
    """Rollout: admission is this hand-out. Parks until a permit, bytes and a prompt with min_version <= `loaded` are there."""

    topic: str
    member: str
    incarnation: int
    loaded: int
    limit: int  # most groups; at most what the replica can start now
    wait_s: float = 30.0


class ProgressItem(Record, frozen=True, array_like=True):
    gid: int
    fence: int
    tokens: int  # generated so far by this attempt
    oldest_version: int | None  # of this attempt's surviving tokens; None before the first


class Progress(Request, frozen=True):
    """Renews generation leases by progress: an item whose `tokens` did not grow does not renew its lease."""

    topic: str
    member: str
    incarnation: int
    items: list[ProgressItem]


class RowPut(Record, frozen=True):
    """One finished trajectory row of a leased group. `row` is the sample's place in its group, 0-based."""

    gid: int
    fence: int
    row: int
    columns: dict[str, Slice]
    tokens: int
    oldest_version: int
    newest_version: int


class PutRows(Request, frozen=True):
    """Publish rows and close groups, atomically per group. Late or fenced groups come back in `closed`; their bytes are freed."""

    topic: str
    member: str
    incarnation: int
    rows: list[RowPut]
    close: dict[int, int] = {}  # gid -> row count: the producer closes the group


class DropGroups(Request, frozen=True):
    """A holder gives groups up for good (a reward that timed out, a prompt too long). Counted under `reason`."""

    topic: str
    member: str
    incarnation: int
    gids: list[int]
    reason: str


class Take(Request, frozen=True):
    """Lease rows or whole groups for a stage.

    A terminal consumer names its `step` (= the version it trains from); the controller never hands out more than what is left of that batch.
    """

    topic: str
    consumer: str
    member: str
    incarnation: int
    limit: int  # groups for unit group, rows for unit row
    at_least: int = 1  # park until so many can be had at once (or the batch needs fewer)
    loaded: int | None = None  # the taker's weights version, where the consumer needs weights
    step: int | None = None
    wait_s: float = 30.0


class WriteBack(Request, frozen=True):
    """Outputs of a leased batch and, with it, the acknowledgement of the lease."""

    topic: str
    consumer: str
    member: str
    incarnation: int
    lease: int
    columns: dict[str, list[Slice]]  # aligned with `keys`
    keys: list[tuple[int, int]]  # (gid, row)
    weights: ModelVersion | None = None  # what made the columns


class Release(Request, frozen=True):
    """Give a lease back undone: its rows are ready again."""

    topic: str
    consumer: str
    member: str
    incarnation: int
    lease: int


class Commit(Request, frozen=True):
    """One optimizer step: groups trained, version + 1, permits back. Idempotent by (model, epoch, step)."""

    topic: str
    consumer: str
    member: str
    incarnation: int
    model: str
    epoch: int
    step: int  # the version trained from; the reply's version is step + 1
    leases: list[int]
    info: dict[str, float] = {}  # the trainer's metrics of this step, for the record


class Published(Request, frozen=True):
    """The publisher holds these weights, whole and digested: they become the desired ones."""

    weights: ModelVersion
    member: str
    incarnation: int


class Report(Request, frozen=True):
    """A fact for the event log and the run's record (evaluation result, exported weights, sync phases)."""

    member: str
    incarnation: int
    kind: str
    data: dict[str, float | int | str]


class Cancel(Request, frozen=True):
    """Answer the parked request `target` of this connection now: with what it has, else empty. Its reply is its own; this one is OkEmpty."""

    target: int


class Stop(Request, frozen=True):
    """Ask the run to end: every directive becomes `stop`."""

    reason: str


class Status(Request, frozen=True):
    """One snapshot of everything that is not tensor bytes."""


# ---------------------------------------------------------------- replies

class Reply(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    id: int = 0  # the request it answers


class OkEmpty(Reply, frozen=True):
    """Done; or, for a parked request, nothing came within `wait_s`."""


class ErrorReply(Reply, frozen=True):
    code: str  # "malformed" | "unknown_topic" | "unknown_member" | "stale_incarnation" | "bad_request" | "internal" | ...
    message: str  # key, value, rule, consequence, fix


class ShardInfo(Record, frozen=True):
    index: int
    endpoint: str
    server_key: str = ""  # CURVE public key (Z85), "" without CURVE


class OkRegistered(Reply, frozen=True):
    member: str
    incarnation: int
    config: bytes  # the resolved configuration of the run, opaque to the queue
    topics: list[TopicSpec]
    shards: list[ShardInfo]


class Directive(Record, frozen=True):
    """Desired state. Workers reconcile; nothing is called on them."""

    revision: int
    state: RunState
    reason: str = ""
    duty: str | None = None  # "evaluate": finish what you have, take nothing new, evaluate with the loaded weights
    weights: dict[str, ModelVersion] = {}  # newest published, by model
    versions: dict[str, int] = {}  # newest committed, by model
    endpoints: dict[str, str] = {}  # e.g. where the publisher of a model answers
    members: int = 0  # membership epoch: grows with every join, leave and death
    alive: list[str] = []  # "name#incarnation" of the members now
    cancelled: list[tuple[int, int]] = []  # (gid, fence) of attempts this member held that were dropped since its last directive


class OkDirective(Reply, frozen=True):
    directive: Directive


class OkPrompts(Reply, frozen=True):
    accepted: int  # how many of the put were new
    cursor: int  # the stored cursor, which is the larger one


class OkDemand(Reply, frozen=True):
    wanted: int  # prompts that may be put now; 0 after wait_s
    cursor: int
    done: bool  # the topic's count is trained or the run stops


class GroupLease(Record, frozen=True):
    gid: int
    fence: int  # goes with every later message about this attempt
    min_version: int  # no token of it may be made by older weights
    rows: list[int]  # samples still missing (a reissue keeps those that were put)
    columns: dict[str, Slice]  # the group's shared columns


class OkPulled(Reply, frozen=True):
    groups: list[GroupLease]
    done: bool = False  # nothing will ever come again
    need_version: int | None = None  # admission waits for a replica with at least this loaded


class OkProgress(Reply, frozen=True):
    closed: list[int]  # gids that are dropped or no longer yours: abort them


class OkPut(Reply, frozen=True):
    closed: list[int]  # gids refused: late, dropped or fenced. Counted, never an error


class RowRef(Record, frozen=True, array_like=True):
    """One row as a consumer gets it. `columns` follows the consumer's inputs; None where an optional one is missing."""

    gid: int
    row: int
    oldest_version: int
    newest_version: int
    columns: list[Slice | None]


class OkTaken(Reply, frozen=True):
    lease: int = -1  # -1: nothing
    rows: list[RowRef] = []  # rows of a group are adjacent, in row order; groups in the sampler's order
    version: int = 0  # the topic's clock at hand-out
    batch: int = 0  # terminal: how many groups this step's batch has in all
    done: bool = False  # nothing will ever come again


class OkWritten(Reply, frozen=True):
    closed: list[int]  # gids whose columns were refused


class OkCommitted(Reply, frozen=True):
    version: int
    trained: int  # groups trained so far
    done: bool


class OkStatus(Reply, frozen=True):
    status: StatusRecord


class ConsumerStatus(Record, frozen=True):
    name: str
    done_rows: int
    leased_rows: int
    ready_rows: int
    waiting: list[str]  # members parked


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
    idle_s: float  # since the last change of any ledger


# ---------------------------------------------------------------- what an observer sees


class Event(Record, frozen=True):
    """One line of the append-only log: every change of the ledger, of versions and of membership."""

    t_s: float  # controller's monotonic clock, since its start
    kind: str  # "group" | "commit" | "published" | "member" | "report" | "topic" | "stall" | "run"
    topic: str = ""
    gid: int = -1
    src: str = ""  # state left ("" = new)
    dst: str = ""  # state entered
    reason: str = ""
    version: int = -1
    member: str = ""
    data: dict[str, float | int | str] = {}


AnyRequest = (
    Register | Watch | Failed | Leave | MemberDead | PutPrompts | Demand | ClosePrompts | Pull | Progress | PutRows | DropGroups | Take | WriteBack
    | Release | Commit | Published | Report | Cancel | Stop | Status
)
AnyReply = (
    OkEmpty | ErrorReply | OkRegistered | OkDirective | OkPrompts | OkDemand | OkPulled | OkProgress | OkPut | OkTaken | OkWritten | OkCommitted
    | OkStatus
)
