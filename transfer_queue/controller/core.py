"""The controller as a pure state machine: requests in, replies out, time injected. No sockets, no tensor bytes, nothing that blocks.

Every request is answered exactly once: at once, when what it waits for has come, at its deadline, or when a `Cancel` names it. A request that breaks
a rule changes nothing and gets an `ErrorReply`; no request ends the loop.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from transfer_queue.controller import leasing
from transfer_queue.controller.config import CoreConfig
from transfer_queue.controller.duties import Duty
from transfer_queue.controller.errors import RequestError, bad
from transfer_queue.controller.handlers import CHANGE_NOTHING, LOOKS, Handlers
from transfer_queue.controller.keyed.handling import WAIT
from transfer_queue.controller.members import Member
from transfer_queue.controller.parked import Waiter, clamp_wait
from transfer_queue.controller.refused import places_in
from transfer_queue.controller.repeats import FIRST, Line
from transfer_queue.controller.run import COMPLETED, FrozenRun, Run
from transfer_queue.controller.runtime import Key, Observer, TraceSink
from transfer_queue.controller.told import Told
from transfer_queue.controller.topic import TopicState
from transfer_queue.messages import (
    Cancel,
    ErrorReply,
    OkEmpty,
    OkKeyedTaken,
    OkPulled,
    OkTaken,
    Reply,
    Request,
    StallReport,
    StatusRecord,
    Watch,
)
from transfer_queue.samplers.choice import Choices

__all__ = ["COMPLETED", "Core", "CoreConfig", "Duty", "Observer"]

log = logging.getLogger(__name__)

FORGOTTEN = 1 << 32  # more numbers than a controller gives in the time for which it may not remember them


class Core:
    """One thread drives it: `handle` for every request, `tick` when `next_deadline` has come; it drains `outbox`, `repeated`, `frees` and `sweeps`
    after each.

    What it becomes is a function of its configuration, of what drives it at the times of its clock, and of what samplers of somebody's own chose:
    no other look at a clock, no random number, no order of a set. The journal relies on that.
    """

    def __init__(self, config: CoreConfig, observer: Observer, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds. Raises ValueError for a configuration that cannot work."""
        self._run = Run(config, observer, clock)
        self._runtime = self._run.runtime
        self._parked = self._run.parked
        self._handlers = Handlers(self._run)
        self.outbox: list[tuple[bytes, Reply]] = []  # (connection, reply), in order
        self.repeated: list[tuple[bytes, Reply]] = []  # replies that were given before: nothing is taken back if they cannot be delivered

    # ------------------------------------------------------------ what the server drains and asks

    @property
    def frees(self) -> dict[int, list[int]]:
        """Shard index → blocks to free; the server drains it."""
        return self._runtime.blocks.frees

    @property
    def sweeps(self) -> list[tuple[int | None, str]]:
        """(shard, None for every shard; owner that ended): its blocks go but for the live ones; the server drains it."""
        return self._run.control.sweeps

    @property
    def told(self) -> dict[int, Told]:
        """Shard index → what it was told and has not confirmed."""
        return self._runtime.blocks.told

    @property
    def serials(self) -> int:
        """Numbers given, to leases and attempts."""
        return self._runtime.serials

    @property
    def emitted(self) -> int:
        """Calls of the observer."""
        return self._runtime.emitted

    @property
    def stopped(self) -> bool:
        return self._run.stopped

    @property
    def draining(self) -> bool:
        """Nothing new is handed out any more, until the run is stopped."""
        return self._run.control.desired.draining

    @property
    def drained(self) -> bool:
        """It is draining, and nothing is under way any more."""
        return self._run.drained

    @property
    def members(self) -> list[Member]:
        return list(self._run.control.members)

    @property
    def topics(self) -> dict[str, TopicState]:
        return self._run.topics

    def send_traces_to(self, sink: TraceSink) -> None:
        """Without it, what heartbeats carry is thrown away."""
        self._runtime.trace_sink = sink

    def send_stall_to(self, sink: Callable[[StallReport], None], doing: Callable[[str], str] = lambda member: "") -> None:
        """`sink` gets the report of a stall before the run is stopped for it. `doing` (a member's name → what its process does now, "" where nobody
        can tell) makes reports say more. Both must be quick and must not raise."""
        self._run.on_stall, self._run.doing = sink, doing

    def measure_cpu_by(self, clock: Callable[[], float]) -> None:
        """`clock`: seconds of processor time of the thread that drives this, for the status."""
        self._run.traffic.cpu_s = clock

    def live_blocks(self, shard: int) -> list[int]:
        return self._runtime.blocks.live(shard)

    def status(self) -> StatusRecord:
        return self._run.status()

    def next_deadline(self) -> float | None:
        """When `tick` is due, seconds of the clock."""
        due = self._runtime.timers.next()
        return None if due is None else self._runtime.on_clock(due)

    def choose_by(self, choices: Choices) -> None:
        """`choices` is given each question to a sampler of somebody's own, and gives what is followed."""
        self._runtime.choices = choices

    def observe(self, observer: Observer) -> None:
        """In place of the one before."""
        self._runtime.observe(observer)

    @property
    def settled(self) -> bool:
        """Nothing is left to be said or done: a moment to be frozen."""
        return not self.outbox and not self._runtime.dirty and not self._runtime.cancelled

    def freeze(self) -> FrozenRun:
        """When it is settled. Encode it before the next input: it shares what is no array with the state machine."""
        assert self.settled, "what is under way has no place in a frozen state"
        return self._run.freeze()

    def thaw(self, frozen: FrozenRun) -> None:
        """A new state machine of the same configuration becomes what `frozen` was, whose parts it keeps."""
        self._run.thaw(frozen, self._expired)

    # ------------------------------------------------------------ what drives it

    def handle(self, connection: bytes, request: Request) -> None:
        """One request. Its reply, and those it makes possible, are in `outbox` afterwards; in `repeated` if it was answered before."""
        self._run.traffic.asked(request)
        line = self._line(request)
        if line is not None and self._was_taken_in(connection, request, line):
            return
        reply = self._guard(request, lambda: self._serve(connection, request, line))
        if reply is not None:
            self._answer(connection, request.id, reply, line)
        self._contain(self._settle)

    def is_beat(self, request: Request) -> bool:
        """Of a request that only looks (`handlers.LOOKS`): whether it counts as a heartbeat now. Else it changes nothing."""
        return self._run.is_beat(request)

    def malformed(self, connection: bytes, request_id: int, message: str) -> None:
        """Bytes that are no request: their sender is told, nothing else happens."""
        self._answer(connection, request_id, ErrorReply(code="malformed", message=message), None)

    def tick(self) -> None:
        """Everything whose time has come: parked requests, leases, heartbeats, the stall check."""
        self._contain(lambda: self._runtime.timers.run(self._runtime.now()))
        self._contain(self._settle)

    def frozen(self, seconds: float) -> None:
        """The process was stopped, or so far behind, for so long: nobody it did not hear meanwhile is to blame. Every deadline moves by as much."""
        self._runtime.frozen(seconds)

    def restarted(self, seconds: float, undone: bool) -> None:
        """The process is another one, `seconds` after the last input. `undone`: what was acknowledged shortly before may be forgotten; so everybody
        is to join anew, and no number that may have been given is given again."""
        self.frozen(seconds)
        self._runtime.emit("run", reason="restarted", data={"undone": int(undone)})
        if undone:
            self._runtime.skip_serials(FORGOTTEN)
            self._contain(lambda: self._run.control.end_all("the controller's machine failed, and what happened last is not known", FORGOTTEN))
        self._contain(self._settle)

    def undelivered(self, connection: bytes, reply: Reply) -> None:
        """The connection is gone: its parked requests are forgotten, and what this reply handed out is taken back at once."""
        for waiter in self._parked.forget_connection(connection):
            if not self._runtime.repeats.undo(waiter.address[1]):  # else it comes again, with the same blocks
                self._refuse(waiter.request)
        self._contain(lambda: self._take_back(reply))
        self._contain(self._settle)

    def unreachable(self, shard: Member, cause: str) -> None:
        """The server cannot connect to this shard: its bytes could be neither freed nor read, so it is dead to the run."""
        self._contain(lambda: self._run.control.end(shard, "died", cause))
        self._contain(self._settle)

    def _take_back(self, reply: Reply) -> None:
        turn = isinstance(reply, OkTaken) and reply.lease == -1 and reply.round != -1  # an empty part: its rank is to hear of it again
        if isinstance(reply, OkTaken | OkPulled | OkKeyedTaken) and not turn:
            self._runtime.repeats.undo(reply.id)
        if isinstance(reply, OkKeyedTaken):
            self._run.keyed.take_back(reply)
        for topic in self.topics.values():
            if isinstance(reply, OkTaken):
                leasing.take_back(topic, reply.lease)
            if isinstance(reply, OkPulled):
                for lease in reply.groups:
                    topic.take_back_group(lease.gid, lease.fence)

    # ------------------------------------------------------------ repeats

    def _line(self, request: Request) -> Line | None:
        """Of the member that may send this request again."""
        if request.id < FIRST or type(request) not in self._handlers.of_members:
            return None
        member = self._run.control.members.find(request.member)  # type: ignore[attr-defined]
        if member is None or member.incarnation != request.incarnation:  # type: ignore[attr-defined]
            return None
        return self._runtime.repeats.line(member.owner, request)

    def _was_taken_in(self, connection: bytes, request: Request, line: Line) -> bool:
        """Its reply is given again, where there is one."""
        if request.id < line.heard:
            return True  # a late copy, out of a connection that is gone
        waiting = line.waiting.get(request.id)
        reply = line.replies.get(request.id)
        if waiting is None and reply is None:
            return False
        self._run.member(request)  # it lives
        if reply is not None:
            self.repeated.append((connection, reply))
        elif waiting is not None and (waiter := self._parked.find((waiting, request.id))) is not None:
            self._parked.move(waiter, connection)
            line.waiting[request.id] = connection
        return True

    # ------------------------------------------------------------ dispatch

    def _serve(self, connection: bytes, request: Request, line: Line | None) -> Reply | None:
        kind = type(request)
        if isinstance(request, Cancel):
            return self._cancel(connection, request)
        if kind not in self._handlers.parking:
            return self._handlers.at_once[kind](request)
        address = (connection, request.id)
        if address in self._parked:
            raise bad(f"id={request.id} is parked on this connection already: its reply could not be told apart; count ids up")
        member = self._run.member(request)
        if isinstance(request, Watch):
            self._run.control.heard(member, request)
            request = msgspec.structs.replace(request, trace=b"")  # taken in, and no part of what waits
        wait_s = clamp_wait(request.wait_s)  # type: ignore[attr-defined]
        reply = self._attempt(request, member, wait_s == 0)
        if reply is None:
            self._parked.add(address, request, member.owner, self._key(request), self._runtime.now(), wait_s, self._expired)
            if line is not None:
                line.waiting[request.id] = connection
        return reply

    def _attempt(self, request: Request, member: Member, last: bool) -> Reply | None:
        return self._handlers.parking[type(request)][1](request, member, last)

    def _retry(self, waiter: Waiter, last: bool) -> None:
        """Try a parked request again; `last`: it must be answered now."""
        if self._parked.find(waiter.address) is not waiter:
            return  # answered or forgotten while we went through the list
        member = self._run.control.members.find(waiter.request.member)
        assert member is not None, "the requests of a member that ended are forgotten with it"
        reply = self._guard(waiter.request, lambda: self._attempt(waiter.request, member, last))
        if reply is not None:
            self._parked.remove(waiter)
            self._answer(*waiter.address, reply, self._runtime.repeats.parked_line(waiter.address[1]))

    def _expired(self, waiter: Waiter) -> None:
        self._retry(waiter, last=True)

    def _cancel(self, connection: bytes, request: Cancel) -> OkEmpty:
        waiter = self._parked.find((connection, request.target))
        if waiter is not None:
            self._retry(waiter, last=True)
        return OkEmpty()

    def _settle(self) -> None:
        """Follow what the request made possible until nothing more is: cancellations, duties, the end of the run, parked requests."""
        control = self._run.control
        while True:
            if self._parked.orphans:
                self._refuse_orphans()
            if self._runtime.cancelled:
                cancelled, self._runtime.cancelled = self._runtime.cancelled, []
                for owner, gid, fence in cancelled:
                    control.tell_cancelled(owner, gid, fence)
            control.duties.assign()
            self._run.complete()
            waiters = self._next_waiters()
            if not waiters:
                return
            for waiter in waiters:
                self._retry(waiter, last=False)

    def _next_waiters(self) -> list[Waiter]:
        """Those that may be served now by the first reason that wakes any; none is left when there are none."""
        dirty = self._runtime.dirty
        while dirty:
            key = next(iter(dirty))
            del dirty[key]
            if waiters := self._waiters(key):
                return waiters
        return []

    def _refuse_orphans(self) -> None:
        """Requests of members that ended: one that was only thought dead must not wait for their deadlines."""
        orphans, self._parked.orphans = self._parked.orphans, []
        for waiter in orphans:
            self._refuse_orphan(waiter)

    def _refuse_orphan(self, waiter: Waiter) -> None:
        def serve() -> None:
            self._run.member(waiter.request)  # raises: this incarnation has ended

        reply = self._guard(waiter.request, serve)
        if reply is not None:
            self._answer(*waiter.address, reply, None)

    def _waiters(self, key: Key) -> list[Waiter]:
        kind, topic, name = key
        if kind == "all":
            return self._parked.all()
        if topic or kind in ("watch", "roster"):
            return self._parked.of(key)
        return [waiter for topic in self.topics for waiter in self._parked.of((kind, topic, name))]  # "" wakes this kind in every topic

    def _key(self, request: Any) -> Key:
        kind = self._handlers.parking[type(request)][0]
        if kind == "watch":
            return kind, "", request.member
        if kind == "roster":
            return kind, "", ""
        if kind == WAIT:
            return kind, request.partition, ""
        return kind, request.topic, request.consumer if kind == "take" else ""

    def _answer(self, connection: bytes, request_id: int, reply: Reply, line: Line | None) -> None:
        """`line`: whose request it is that may come again."""
        if isinstance(reply, ErrorReply):
            self._run.traffic.refused(reply.code)
        answer = msgspec.structs.replace(reply, id=request_id)
        if line is not None:
            line.answered(answer)
        self.outbox.append((connection, answer))

    # ------------------------------------------------------------ faults

    def _guard(self, request: Request, serve: Callable[[], Reply | None]) -> Reply | None:
        try:
            return serve()
        except RequestError as error:
            self._refuse(request)
            return ErrorReply(code=error.code, message=error.message)
        except Exception as error:  # a fault of ours in one handler must not end the loop: every client would hang for ever
            what = f"{type(request).__name__} failed in the controller: {error!r}"
            if type(request) in CHANGE_NOTHING | LOOKS:  # no journal knows of it, so it must not be counted as an event
                log.exception(what)
                return ErrorReply(code="internal", message=f"{what}; nothing was changed, the controller's log has the traceback. Report it")
            self._runtime.emit("run", reason=what, data={"traceback": traceback.format_exc()})
            return ErrorReply(code="internal", message=f"{what}; its effect is unknown, the event log has the traceback. Report it")

    def _refuse(self, request: Request) -> None:
        """Free what a request names that was not taken in."""
        for table in places_in(request):
            self._runtime.blocks.refuse(table)

    def _contain(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # outside of any request: nobody to answer, and the books may be wrong, so the run ends and says why
            reason = f"the controller failed: {error!r}"
            self._runtime.emit("run", reason=reason, data={"traceback": traceback.format_exc()})
            self._run.control.desired.stop(reason)
