"""The controller as a pure state machine: requests in, replies out, time injected. No sockets, no tensor bytes, nothing that blocks.

Every request is answered exactly once: at once, when what it waits for has come, at its deadline, or when a `Cancel` names it. A request that breaks
a rule changes nothing and gets an `ErrorReply`; no request ends the loop.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from transfer_queue.controller import committing, consuming, producing, sourcing, status
from transfer_queue.controller.control import Control
from transfer_queue.controller.duties import Duty
from transfer_queue.controller.errors import RequestError, bad
from transfer_queue.controller.members import Member
from transfer_queue.controller.parked import Parked, Waiter, clamp_wait
from transfer_queue.controller.runtime import Key, Observer, Runtime
from transfer_queue.controller.topic import TopicState
from transfer_queue.messages import (
    Cancel,
    ClosePrompts,
    Commit,
    Demand,
    DropGroups,
    ErrorReply,
    Failed,
    Leave,
    MemberDead,
    OkCommitted,
    OkDemand,
    OkEmpty,
    OkPrompts,
    OkPulled,
    OkStatus,
    OkTaken,
    Progress,
    Published,
    Pull,
    PutPrompts,
    PutRows,
    Record,
    Register,
    Release,
    Reply,
    Report,
    Request,
    Slice,
    Status,
    StatusRecord,
    Stop,
    Take,
    TopicSpec,
    Watch,
    WriteBack,
)

COMPLETED = "completed"


class CoreConfig(Record, frozen=True):
    """A run as the controller sees it."""

    topics: list[TopicSpec]  # one a model
    config: bytes = b""  # handed to every member that joins, opaque
    duties: list[Duty] = []
    lease_s: float = 30.0  # a lease without progress ends after this
    heartbeat_s: float = 10.0  # a member without a message is dead after this
    stall_s: float = 60.0  # a run without progress is stopped after this


class Core:
    """One thread drives it: `handle` for every request, `tick` when `next_deadline` has come; it drains `outbox`, `frees` and `sweeps` after each."""

    def __init__(self, config: CoreConfig, observer: Observer, clock: Callable[[], float]) -> None:
        if not config.topics or len({topic.name for topic in config.topics}) < len(config.topics) or len({t.model for t in config.topics}) < len(config.topics):
            raise ValueError(
                f"topics {[(topic.name, topic.model) for topic in config.topics]}: a run needs at least one, each with a name and a model of "
                "its own, whose commits are its clock"
            )
        self._config = config
        self._runtime = Runtime(observer, clock)
        self.topics = {spec.name: TopicState(spec, self._runtime, config.lease_s) for spec in config.topics}
        self._parked = Parked(self._runtime.timers)
        self._control = Control(self.topics, self._parked, self._runtime, config.config, config.duties, config.heartbeat_s)
        self.outbox: list[tuple[bytes, Reply]] = []
        self._runtime.timers.at(self._runtime.now() + config.stall_s, self._check_stall)
        self._at_once: dict[type[Request], Callable[[Any], Reply]] = {
            ClosePrompts: lambda r: sourcing.close_prompts(self._topic(r.topic), r),
            Progress: lambda r: producing.progress(self._topic(r.topic), r, self._owner(r)),
            PutRows: lambda r: producing.put_rows(self._topic(r.topic), r, self._owner(r)),
            DropGroups: lambda r: producing.drop_groups(self._topic(r.topic), r, self._owner(r)),
            WriteBack: lambda r: consuming.write_back(self._topic(r.topic), r, self._owner(r)),
            Release: lambda r: consuming.give_back(self._topic(r.topic), r, self._owner(r)),
            Commit: self._commit,
            Register: self._control.register,
            Failed: self._failed,
            Leave: lambda r: self._control.leave(self._member(r)),
            MemberDead: self._control.member_dead,
            Published: lambda r: self._control.published(self._member(r), r),
            Report: lambda r: self._control.report(self._member(r), r),
            Stop: self._control.stop,
            Status: lambda r: OkStatus(status=self.status()),
        }
        self._parking: dict[type[Request], tuple[str, Callable[[Any, Member, bool], Reply | None]]] = {
            Watch: ("watch", self._control_watch),
            PutPrompts: ("put", self._put_prompts),
            Demand: ("demand", self._demand),
            Pull: ("pull", self._pull),
            Take: ("take", self._take),
        }

    # ------------------------------------------------------------ what the server sees

    @property
    def frees(self) -> dict[int, list[int]]:
        """Shard index → blocks to free; the server drains it."""
        return self._runtime.blocks.frees

    @property
    def sweeps(self) -> list[tuple[int | None, str]]:
        """(shard, None for every shard; owner that ended): its blocks go but for the live ones; the server drains it."""
        return self._control.sweeps

    def live_blocks(self, shard: int) -> list[int]:
        return self._runtime.blocks.live(shard)

    @property
    def stopped(self) -> bool:
        return self._control.desired.stopped

    @property
    def members(self) -> list[Member]:
        return list(self._control.members)

    def handle(self, connection: bytes, request: Request) -> None:
        """One request. Its reply, and those it makes possible, are in `outbox` afterwards."""
        reply = self._guard(request, lambda: self._serve(connection, request))
        if reply is not None:
            self._answer(connection, request.id, reply)
        self._settle()

    def malformed(self, connection: bytes, request_id: int, message: str) -> None:
        self._answer(connection, request_id, ErrorReply(code="malformed", message=message))

    def tick(self) -> None:
        """Everything whose time has come: parked requests, leases, heartbeats, the stall check."""
        self._runtime.timers.run(self._runtime.now())
        self._settle()

    def next_deadline(self) -> float | None:
        """When `tick` is due, seconds of the clock."""
        return self._runtime.timers.next()

    def undelivered(self, connection: bytes, reply: Reply) -> None:
        """The connection is gone: its parked requests are forgotten, and what this reply handed out is taken back at once."""
        self._parked.forget_connection(connection)
        for topic in self.topics.values():
            if isinstance(reply, OkTaken) and (lease := topic.leases.get(reply.lease)) is not None:
                topic.release(lease, "undelivered")
            if isinstance(reply, OkPulled):
                for handed in reply.groups:
                    group = topic.groups.get(handed.gid)
                    if group is not None and group.holder is not None and group.fence == handed.fence:
                        topic.lose_producer(group, "undelivered")
        self._settle()

    # ------------------------------------------------------------ dispatch

    def _serve(self, connection: bytes, request: Request) -> Reply | None:
        kind = type(request)
        if isinstance(request, Cancel):
            return self._cancel(connection, request)
        if kind not in self._parking:
            return self._at_once[kind](request)
        address = (connection, request.id)
        if address in self._parked:
            raise bad(f"id={request.id} is parked on this connection already: its reply could not be told apart; count ids up")
        member = self._member(request)
        if isinstance(request, Watch):
            self._control.heard(member, request)
        wait_s = clamp_wait(request.wait_s)  # type: ignore[attr-defined]
        reply = self._attempt(request, member, wait_s == 0)
        if reply is None:
            self._parked.add(address, request, member.owner, self._key(request), self._runtime.now() + wait_s, self._expired)
        return reply

    def _guard(self, request: Request, serve: Callable[[], Reply | None]) -> Reply | None:
        try:
            return serve()
        except RequestError as error:
            self._runtime.blocks.refuse(_slices(request))
            return ErrorReply(code=error.code, message=error.message)
        except Exception as error:  # a fault of ours in one handler must not end the loop: every client would hang for ever
            self._runtime.emit("run", reason=f"internal error in {type(request).__name__}: {error!r}", data={"traceback": traceback.format_exc()})
            return ErrorReply(
                code="internal",
                message=(
                    f"{type(request).__name__} failed in the controller: {error!r}; its effect is unknown, the event log has the traceback"
                ),
            )

    def _attempt(self, request: Request, member: Member, last: bool) -> Reply | None:
        return self._parking[type(request)][1](request, member, last)

    def _retry(self, waiter: Waiter, last: bool) -> None:
        """Try a parked request again; `last`: it must be answered now."""
        member = self._control.members.find(waiter.request.member)
        if member is None or member.owner != waiter.owner:
            self._parked.remove(waiter)
            return
        reply = self._guard(waiter.request, lambda: self._attempt(waiter.request, member, last))
        if reply is not None:
            self._parked.remove(waiter)
            self._answer(waiter.address[0], waiter.address[1], reply)

    def _expired(self, waiter: Waiter) -> None:
        self._retry(waiter, last=True)

    def _cancel(self, connection: bytes, request: Cancel) -> OkEmpty:
        waiter = self._parked.find((connection, request.target))
        if waiter is not None:
            self._retry(waiter, last=True)
        return OkEmpty()

    def _settle(self) -> None:
        """Follow what the request made possible until nothing more is: cancellations, duties, parked requests, the end of the run."""
        while True:
            cancelled, self._runtime.cancelled = self._runtime.cancelled, []
            for owner, gid, fence in cancelled:
                self._control.tell_cancelled(owner, gid, fence)
            self._control.duties.assign()
            self._complete()
            if not self._runtime.dirty:
                return
            key = next(iter(self._runtime.dirty))
            del self._runtime.dirty[key]
            for waiter in self._waiters(key):
                self._retry(waiter, last=False)

    def _waiters(self, key: Key) -> Iterable[Waiter]:
        if key[0] == "pull-all":
            return [waiter for name in self.topics for waiter in self._parked.of(("pull", name, ""))]
        if key[0] == "all":
            return self._parked.all()
        return self._parked.of(key)

    def _answer(self, connection: bytes, request_id: int, reply: Reply) -> None:
        self.outbox.append((connection, msgspec.structs.replace(reply, id=request_id)))

    def _key(self, request: Any) -> Key:
        kind = self._parking[type(request)][0]
        if kind == "watch":
            return kind, "", request.member
        return kind, request.topic, request.consumer if kind == "take" else ""

    def _topic(self, name: str) -> TopicState:
        topic = self.topics.get(name)
        if topic is None:
            raise RequestError(
                "unknown_topic",
                f"topic={name!r} does not exist, there are {sorted(self.topics)}: the request was not served; name one of them",
            )
        return topic

    def _member(self, request: Any) -> Member:
        return self._control.members.check(request.member, request.incarnation, self._runtime.now())

    def _owner(self, request: Any) -> str:
        return self._member(request).owner

    # ------------------------------------------------------------ requests that need more than their topic

    def _control_watch(self, request: Watch, member: Member, last: bool) -> Reply | None:
        return self._control.watch(member, request, last)

    def _put_prompts(self, request: PutPrompts, member: Member, last: bool) -> Reply | None:
        topic = self._topic(request.topic)
        if self.stopped:
            return OkPrompts(accepted=0, cursor=topic.prompts.cursor)
        return sourcing.put_prompts(topic, request, last)

    def _demand(self, request: Demand, member: Member, last: bool) -> Reply | None:
        topic = self._topic(request.topic)
        if self.stopped:
            return OkDemand(wanted=0, cursor=topic.prompts.cursor, done=True)
        return sourcing.demand(topic, request, last)

    def _pull(self, request: Pull, member: Member, last: bool) -> Reply | None:
        topic = self._topic(request.topic)
        if self.stopped:
            return OkPulled(groups=[], done=True)
        model = topic.spec.model
        if request.loaded > member.loaded.get(model, -1):
            self._control.note_loaded(member, model, request.loaded)
            self._control.duties.assign()
        if self._control.duties.holds_back(member) and not topic.over:
            return OkPulled(groups=[]) if last else None
        return producing.pull(topic, request, member.owner, member.loaded.get(model, -1), last)

    def _take(self, request: Take, member: Member, last: bool) -> Reply | None:
        topic = self._topic(request.topic)
        if self.stopped:
            return OkTaken(version=topic.version, done=True)
        loaded = request.loaded
        if loaded is not None:
            loaded = max(loaded, member.loaded.get(topic.spec.model, -1))  # it may have loaded newer ones while it was parked
        return consuming.take(topic, request, member.owner, loaded, last)

    def _commit(self, request: Commit) -> OkCommitted:
        topic = self._topic(request.topic)
        owner = self._owner(request)
        before = [terminal.clock for terminal in topic.terminals.values()]
        reply = committing.commit(topic, request, owner)
        if before != [terminal.clock for terminal in topic.terminals.values()]:
            self._control.committed(request.model, reply.version)
        return reply

    def _failed(self, request: Failed) -> OkEmpty:
        if self._control.members.was_known(request.member):  # else it raised before it could register
            self._member(request)
        return self._control.failed(request)

    # ------------------------------------------------------------ the run as a whole

    def _complete(self) -> None:
        """Completed: every topic trained its target, the last version is published, and the last duty is done."""
        desired = self._control.desired
        if desired.stopped:
            return
        for topic in self.topics.values():
            weights = desired.weights.get(topic.spec.model)
            if not topic.over or weights is None or weights.version != topic.version:
                return
        for topic in self.topics.values():
            self._control.duties.final(topic.spec.model, topic.version)
        self._control.duties.assign()
        if self._control.duties.finished():
            desired.stop(COMPLETED)

    def _check_stall(self) -> float | None:
        now = self._runtime.now()
        desired = self._control.desired
        if desired.stopped:
            return None
        if desired.state == "pause" or not len(self._control.members):
            return now + self._config.stall_s
        if now < self._runtime.changed_at + self._config.stall_s:
            return self._runtime.changed_at + self._config.stall_s
        report = status.stall_report(list(self.topics.values()), self._control.members, self._parked, now - self._runtime.changed_at)
        self._runtime.emit("stall", reason=report)
        desired.stop(report)
        return None

    def status(self) -> StatusRecord:
        desired = self._control.desired
        return StatusRecord(
            state=desired.state,
            reason=desired.reason,
            members={member.owner: member.role for member in self._control.members},
            topics=[status.topic_status(topic, self._parked) for topic in self.topics.values()],
            idle_s=self._runtime.now() - self._runtime.changed_at,
        )


def _slices(request: Request) -> list[Slice]:
    """The slices that a refused request carries."""
    if isinstance(request, PutRows):
        return [piece for row in request.rows for piece in row.columns.values()]
    if isinstance(request, PutPrompts):
        return [piece for prompt in request.prompts for piece in prompt.columns.values()]
    if isinstance(request, WriteBack):
        return [piece for slices in request.columns.values() for piece in slices]
    return []
