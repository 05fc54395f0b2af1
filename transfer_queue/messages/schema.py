"""What a topic is: typed columns, the stages that consume them, the staleness window."""

from __future__ import annotations

from typing import Any

import msgspec

from transfer_queue.messages.base import Kind, Policy, Record, Unit
from transfer_queue.messages.replaying import Replay


class Column(Record, frozen=True):
    """One typed column of a topic. A (row, column) is written once.

    kind, and what one row is: scalar, a value; per_token, a run of values; blob, bytes; text, a str; object, nested Python data. The last three have
    dtype "uint8" and no shape. Whether dtype, kind and shape fit together is checked by `codec.check_declared` when the controller starts.
    """

    name: str
    dtype: str  # numpy's or torch's name ("bfloat16", "float8_e4m3fn", …): bits travel, they are never converted
    kind: Kind
    producer: str  # name of the stage that writes it
    shared: bool = False  # one value for the whole group, stored once (written with the prompt)
    optional: bool = False  # a row is ready for a consumer without it
    shape: tuple[int, ...] = ()  # of one value: scalar and shape (T,) is an array [rows, T], per_token and shape (k,) runs of [k] values


class Sampler(Record, frozen=True):
    """In which order a consumer is served, and how a batch is dealt to its ranks; `unit: group` makes any of them one of whole groups.

    name: in_order, oldest_first, newest_first, same_version, earliest_deadline, rank_aware, length_balanced, or "package.module:function", one of
    your own. Names and options are checked by `samplers.plan_of` when the controller starts.
    """

    name: str = "oldest_first"
    options: dict[str, Any] = {}


class Consumer(Record, frozen=True):
    """One stage's view of a topic: what it must see before it can have a row, and how it is served."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    unit: Unit = "row"
    terminal: bool = False  # its acknowledgement is `Commit`; its leases end only with its incarnation
    sampler: Sampler | str = "oldest_first"  # a name is a sampler without options
    needs_weights: bool = False  # take only rows whose newest token version <= the taker's loaded version
    replay: Replay | None = None  # terminal: groups that it trained come again, on top of its batches

    @property
    def sampling(self) -> Sampler:
        return Sampler(self.sampler) if isinstance(self.sampler, str) else self.sampler


class Window(Record, frozen=True):
    """The staleness window (flow control) of a topic: permits, clock, policy.

    capacity = (staleness + 1) * batch open groups; `staleness=None` means bounded by bytes only.
    """

    batch: int
    staleness: int | None
    policy: Policy = "wait"
    budget_bytes: int = 1 << 32
    group_bytes: int = 1 << 16  # worst case of one group, reserved at admission; what is handed back of it (`HandBack`) included
    requeue: bool = False  # policy drop: hand the dropped prompt out again instead of the source's next one


class TopicSpec(Record, frozen=True):
    name: str
    model: str  # whose commits are this topic's clock
    columns: tuple[Column, ...]
    consumers: tuple[Consumer, ...]
    window: Window
    prompts_bound: int = 256  # most prompts that wait for admission; a put beyond it parks
    rows_per_group: int = 1  # trajectories a producer is asked for
    rewinds: bool = False  # the source can put any prompt again: those that go with a shard, also of open groups, come again and keep their place

    @property
    def admission_bytes(self) -> int:
        """Of the window's budget: without what is set aside for groups to be replayed."""
        replays = (consumer.replay for consumer in self.consumers if consumer.replay is not None)
        return self.window.budget_bytes - sum(replay.set_aside(self.window.group_bytes) for replay in replays)

    def digest(self) -> str:
        """Hash of the schema, checked in the handshake. Stable across processes."""
        import hashlib

        return hashlib.sha256(msgspec.msgpack.encode((self.columns, self.consumers))).hexdigest()[:16]
