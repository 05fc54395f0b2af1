"""Leases, write-backs, commits: what the stages, the trainer and the publisher say."""

from __future__ import annotations

from transfer_queue.messages.base import Reply, Request
from transfer_queue.messages.places import ModelVersion
from transfer_queue.messages.replaying import Replayed
from transfer_queue.messages.rows import Rows


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
    rank: int | None = None  # data-parallel rank, where the consumer's sampler deals to ranks; `limit` and `at_least` are then those of one rank
    wait_s: float = 30.0


class OkTaken(Reply, frozen=True):
    lease: int = -1  # -1: nothing
    rows: Rows = Rows()  # rows of a group are adjacent, in row order; groups in the sampler's order
    version: int = 0  # the topic's clock at hand-out
    batch: int = 0  # terminal: how many groups this step's batch has in all
    done: bool = False  # nothing will ever come again
    replayed: Replayed = Replayed()  # of a consumer that declares a replay: what was trained before, on top; no part of `rows` and `batch`
    round: int = -1  # with a rank: which dealing this is its part of, counted from 0; its part may be empty; -1: nothing was dealt


class WriteBack(Request, frozen=True):
    """Outputs of a leased batch and, with it, the acknowledgement of the lease."""

    topic: str
    consumer: str
    member: str
    incarnation: int
    lease: int
    gids: bytes  # [R] int64; with `rows` the keys of the rows that are written
    rows: bytes  # [R] int64, place in the group
    columns: dict[str, bytes]  # [R, 4] places each, aligned with the keys; NOWHERE for an optional one
    weights: ModelVersion | None = None  # what made the columns


class OkWritten(Reply, frozen=True):
    closed: list[int]  # gids whose columns were refused


class Release(Request, frozen=True):
    """Give a lease back undone: its rows are ready again."""

    topic: str
    consumer: str
    member: str
    incarnation: int
    lease: int


class Renew(Request, frozen=True):
    """Until it says so again, at most for `within_s` seconds, the owner of a lease does nothing on its rows and is not to blame: something that the
    work needs is started. The time of the lease, and of what its owner took later, begins when that is over; `within_s` 0: it is."""

    topic: str
    consumer: str
    member: str
    incarnation: int
    lease: int
    within_s: float


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


class OkCommitted(Reply, frozen=True):
    version: int
    trained: int  # groups trained so far
    done: bool


class Published(Request, frozen=True):
    """The publisher holds these weights, whole and digested: they become the desired ones."""

    weights: ModelVersion
    member: str
    incarnation: int
