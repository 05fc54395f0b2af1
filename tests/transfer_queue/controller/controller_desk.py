"""The state machine with a fake clock and one-line requests: what the unit tests talk to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from controller_bench import Clock, Log
from controller_messages import put_rows, write_back

from transfer_queue import messages as m
from transfer_queue.controller.core import Core, CoreConfig

R = TypeVar("R", bound=m.Reply)


def plain(
    batch: int = 2, staleness: int | None = 1, policy: m.Policy = "wait", rows: int = 1, sampler: m.Sampler = "in_order", **more: Any
) -> m.TopicSpec:
    """prompt → tokens → trainer, nothing between."""
    columns = (
        m.Column(name="prompt", dtype="uint8", kind="per_token", producer="source", shared=True),
        m.Column(name="tokens", dtype="uint8", kind="per_token", producer="rollout"),
    )
    consumers = (m.Consumer(name="trainer", inputs=("prompt", "tokens"), unit="group", terminal=True, sampler=sampler),)
    return m.TopicSpec(
        name="t",
        model="policy",
        columns=columns,
        consumers=consumers,
        prompts_bound=more.pop("prompts_bound", 100),
        rows_per_group=rows,
        window=m.Window(batch=batch, staleness=staleness, policy=policy, **more),
    )


@dataclass
class Who:
    name: str
    incarnation: int
    connection: bytes

    @property
    def fields(self) -> dict[str, Any]:
        return {"member": self.name, "incarnation": self.incarnation}


class Desk:
    def __init__(self, topic: m.TopicSpec, **config: Any) -> None:
        self.spec = topic
        self.start(CoreConfig(topics=[topic], **config))

    def start(self, config: CoreConfig) -> None:
        self.config = config
        self.clock = Clock()
        self.log = Log()
        self.core = Core(config, self.log, self.clock)
        self.replies: dict[int, m.Reply] = {}  # id -> reply, of everything that was asked
        self._ids = 0
        self._blocks = 0

    @property
    def topic(self) -> Any:
        return self.core.topics[self.spec.name]

    def join(self, name: str, role: str = "rollout", **endpoints: str) -> Who:
        self._ids += 1
        connection = f"{name}/{self._ids}".encode()
        reply = self.ask(connection, m.Register(name=name, role=role, pid=1, host="h", endpoints=endpoints), m.OkRegistered)
        return Who(name, reply.incarnation, connection)

    def send(self, connection: bytes, request: m.Request) -> int:
        """Send; the reply, now or later, is `replies[id]`."""
        self._ids += 1
        self.core.handle(connection, msgspec.structs.replace(request, id=self._ids))
        self.drain()
        return self._ids

    def drain(self) -> None:
        for _, reply in self.core.outbox:
            assert reply.id not in self.replies, "two replies to one request"
            self.replies[reply.id] = reply
        self.core.outbox.clear()

    def ask(self, connection: bytes, request: m.Request, kind: type[R]) -> R:
        """Send and expect this reply at once."""
        reply = self.replies.get(self.send(connection, request))
        assert isinstance(reply, kind), f"expected {kind.__name__}, got {reply}"
        return reply

    def refuse(self, connection: bytes, request: m.Request, code: str = "bad_request") -> str:
        """Send and expect an error; returns its message."""
        reply = self.ask(connection, request, m.ErrorReply)
        assert reply.code == code, reply
        return reply.message

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self.core.tick()
        self.drain()

    def slice(self) -> m.Slice:
        self._blocks += 1
        return m.Slice(0, self._blocks, 0, 1)

    def freed(self) -> list[int]:
        """Blocks of shard 0 to free since the last call."""
        return self.core.frees.pop(0, [])

    # ------------------------------------------------------------ one-line requests

    def prompts(self, count: int, source: Who | None = None) -> None:
        who = source or self.join("source", "source")
        cursor = self.topic.prompts.cursor
        puts = [m.PromptPut(gid=gid, columns={"prompt": self.slice()}) for gid in range(cursor, cursor + count)]
        self.ask(who.connection, m.PutPrompts(topic=self.spec.name, prompts=puts, cursor=cursor + count, **who.fields), m.OkPrompts)

    def pull(self, who: Who, limit: int = 1, loaded: int = 0, wait_s: float = 0.0, epoch: int | None = None) -> list[m.GroupLease]:
        request = m.Pull(topic=self.spec.name, loaded=loaded, limit=limit, wait_s=wait_s, epoch=epoch, **who.fields)
        return self.ask(who.connection, request, m.OkPulled).groups

    def progress(self, who: Who, lease: m.GroupLease, tokens: int, oldest: int | None) -> list[int]:
        item = m.ProgressItem(lease.gid, lease.fence, tokens, oldest)
        return self.ask(who.connection, m.Progress(topic=self.spec.name, items=[item], **who.fields), m.OkProgress).closed

    def row(self, lease: m.GroupLease, row: int = 0, oldest: int = 0, newest: int | None = None) -> m.RowPut:
        return m.RowPut(
            gid=lease.gid,
            fence=lease.fence,
            row=row,
            columns={"tokens": self.slice()},
            tokens=3,
            oldest_version=oldest,
            newest_version=oldest if newest is None else newest,
        )

    def put(self, who: Who, lease: m.GroupLease, version: int = 0, newest: int | None = None) -> list[int]:
        """Put every missing row and close the group."""
        rows = [self.row(lease, row, version, newest) for row in lease.rows]
        group = self.topic.groups.get(lease.gid)
        close = {lease.gid: len(rows) + (0 if group is None else len(group.rows))}  # a reissue closes with the rows of all attempts
        return self.ask(who.connection, put_rows(rows, topic=self.spec.name, close=close, **who.fields), m.OkPut).closed

    def take(self, who: Who, consumer: str = "trainer", limit: int = 100, wait_s: float = 0.0, **more: Any) -> m.OkTaken:
        return self.ask(who.connection, m.Take(topic=self.spec.name, consumer=consumer, limit=limit, wait_s=wait_s, **who.fields, **more), m.OkTaken)

    def write(self, who: Who, taken: m.OkTaken, consumer: str, column: str, weights: int | None = None) -> list[int]:
        keys = [(row.gid, row.row) for row in taken.rows]
        made = None if weights is None else m.ModelVersion("policy", 0, weights)
        request = write_back(
            topic=self.spec.name,
            consumer=consumer,
            lease=taken.lease,
            columns={column: [self.slice() for _ in keys]},
            keys=keys,
            weights=made,
            **who.fields,
        )
        return self.ask(who.connection, request, m.OkWritten).closed

    def commit(self, who: Who, step: int, leases: list[int], consumer: str = "trainer", model: str = "policy", epoch: int = 0) -> m.Commit:
        return m.Commit(topic=self.spec.name, consumer=consumer, model=model, epoch=epoch, step=step, leases=leases, **who.fields)

    def publish(self, who: Who, version: int, epoch: int = 0) -> None:
        self.ask(who.connection, m.Published(weights=m.ModelVersion("policy", epoch, version), **who.fields), m.OkEmpty)

    def watch(self, who: Who, seen: int = -1, wait_s: float = 0.0, **more: Any) -> m.Directive:
        return self.ask(who.connection, m.Watch(seen=seen, wait_s=wait_s, **who.fields, **more), m.OkDirective).directive

    def states(self) -> dict[int, str]:
        return {gid: group.state for gid, group in self.topic.groups.items()}

    def ledger(self) -> dict[str, int]:
        return {state: count for state, count in self.topic.ledger.counts.items() if count}


def gids(taken: m.OkTaken) -> list[int]:
    return list(dict.fromkeys(row.gid for row in taken.rows))


def train_step(desk: Desk, rollout: Who, trainer: Who, step: int, epoch: int = 0) -> None:
    """Pull, produce and train exactly one batch from weights of version `step`."""
    for lease in desk.pull(rollout, desk.spec.window.batch, loaded=step):
        assert not desk.put(rollout, lease, step)
    taken = desk.take(trainer, step=step)
    desk.ask(trainer.connection, desk.commit(trainer, step, [taken.lease], epoch=epoch), m.OkCommitted)
