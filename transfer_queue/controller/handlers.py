"""Which code answers which request: the two tables that `Core` dispatches by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transfer_queue import messages as m
from transfer_queue.controller import committing, consuming, dropping, handback, producing, putting, sourcing
from transfer_queue.controller.keyed.handling import WAIT
from transfer_queue.controller.members import Member
from transfer_queue.controller.run import Run
from transfer_queue.controller.topic import TopicState, Weights

AtOnce = Callable[[Any], m.Reply]
LOOKS = frozenset({m.KeyedLook, m.KeyedList})  # of members: all they change is that their member was heard, and that once in a while
CHANGE_NOTHING = frozenset({m.Status, m.ReadImage})
Attempt = Callable[[Any, Member, bool], m.Reply | None]
"""(request, its member, last) → the reply, or None: not yet. `last`: now or never, so that the reply may be empty but not None."""


class Handlers:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._control = run.control
        self.at_once: dict[type[m.Request], AtOnce] = self._of_topics() | self._of_keyed() | self._of_members()
        self.parking: dict[type[m.Request], tuple[str, Attempt]] = {
            m.Watch: ("watch", lambda r, member, last: self._control.watch(member, r, last)),
            m.Roster: ("roster", lambda r, member, last: self._control.roster(r, last)),
            m.PutPrompts: ("put", self._put_prompts),
            m.Demand: ("demand", self._demand),
            m.Pull: ("pull", self._pull),
            m.Take: ("take", self._take),
            m.Put: ("put", self._put),
            m.KeyedTake: (WAIT, self._keyed_take),
        }
        kinds = {*self.at_once, *self.parking} - {m.MemberDead} - LOOKS
        self.of_members = frozenset(kind for kind in kinds if "incarnation" in kind.__struct_fields__)  # which say who sends them

    def _of_topics(self) -> dict[type[m.Request], AtOnce]:
        topic, owner = self._run.topic, self._owner
        return {
            m.ClosePrompts: lambda r: sourcing.close_prompts(topic(r.topic), r),
            m.Progress: lambda r: producing.progress(topic(r.topic), r, owner(r)),
            m.HandBack: lambda r: handback.hand_back(topic(r.topic), r, owner(r), self._draining),
            m.PutRows: lambda r: producing.put_rows(topic(r.topic), r, owner(r)),
            m.DropGroups: lambda r: dropping.drop_groups(topic(r.topic), r, owner(r)),
            m.WriteBack: lambda r: consuming.write_back(topic(r.topic), r, owner(r)),
            m.Release: lambda r: consuming.give_back(topic(r.topic), r, owner(r)),
            m.Renew: lambda r: consuming.renew(topic(r.topic), r, owner(r)),
            m.Commit: self._commit,
        }

    def _of_keyed(self) -> dict[type[m.Request], AtOnce]:
        keyed, member = self._run.keyed, self._run.member

        def of(serve: AtOnce) -> AtOnce:
            return lambda r: (member(r), serve(r))[1]  # who asks is alive, or refused

        def look(serve: AtOnce) -> AtOnce:
            return lambda r: (self._run.looker(r), serve(r))[1]

        return {
            m.KeyedPut: of(keyed.put),
            m.KeyedLook: look(keyed.look),
            m.KeyedList: look(keyed.list_all),
            m.KeyedClear: of(keyed.clear),
            m.KeyedEndTask: of(keyed.end_task),
        }

    def _of_members(self) -> dict[type[m.Request], AtOnce]:
        control, member, saves = self._control, self._run.member, self._run.saves
        return {
            m.Register: control.register,
            m.Failed: self._failed,
            m.Leave: control.leave,
            m.MemberDead: control.member_dead,
            m.Published: lambda r: control.published(member(r), r),
            m.Report: lambda r: control.report(member(r), r),
            m.Drain: control.drain,
            m.Save: lambda r: saves.save(self._owner(r)),
            m.ReadImage: saves.read,
            m.EndSave: lambda r: saves.forget(self._owner(r)),
            m.LoadPart: lambda r: saves.part(self._owner(r), r),
            m.Load: lambda r: saves.load(self._owner(r), r),
            m.Stop: control.stop,
            m.Status: lambda r: m.OkStatus(status=self._run.status(), waits=self._run.waits() if r.waits else None),
        }

    @property
    def _draining(self) -> bool:
        """Requests for work stay parked, so that nobody asks in circles."""
        return self._control.desired.draining

    def _owner(self, request: Any) -> str:
        return self._run.member(request).owner

    # ------------------------------------------------------------ requests that need more than their topic

    def _put_prompts(self, request: m.PutPrompts, member: Member, last: bool) -> m.OkPrompts | None:
        topic = self._run.topic(request.topic)
        if self._run.stopped:
            return m.OkPrompts(accepted=0, cursor=topic.prompts.cursor)
        if self._draining:
            return m.OkPrompts(accepted=0, cursor=topic.prompts.cursor) if last else None
        reply = sourcing.put_prompts(topic, request, last)
        topic.askers.note(topic.schema.source, member.owner, granted=reply is not None and reply.accepted > 0, parked=reply is None)
        return reply

    def _put(self, request: m.Put, member: Member, last: bool) -> m.OkStored | None:
        topic = self._run.topic(request.topic)
        if self._run.stopped:
            return m.OkStored(done=True)
        if self._draining:
            return m.OkStored() if last else None
        reply = putting.put(topic, request, member.owner, last)
        topic.askers.note(topic.schema.generator, member.owner, granted=reply is not None and bool(reply.gids), parked=reply is None)
        return reply

    def _demand(self, request: m.Demand, member: Member, last: bool) -> m.OkDemand | None:
        topic = self._run.topic(request.topic)
        if self._run.stopped:
            return m.OkDemand(wanted=0, cursor=topic.prompts.cursor, done=True)
        if self._draining:
            return m.OkDemand(wanted=0, cursor=topic.prompts.cursor, done=False) if last else None
        reply = sourcing.demand(topic, request, last)
        topic.askers.note(topic.schema.source, member.owner, granted=reply is not None and reply.wanted > 0, parked=reply is None)
        return reply

    def _pull(self, request: m.Pull, member: Member, last: bool) -> m.OkPulled | None:
        topic = self._run.topic(request.topic)
        if self._run.stopped:
            return m.OkPulled(groups=[], done=True)
        model = topic.spec.model
        producing.check_pull(request)
        self._control.check_loaded({model: request.loaded})
        asked = _weights(topic, request.epoch, request.loaded)
        if asked > _weights(topic, member.epochs.get(model), member.loaded.get(model, -1)):
            self._control.note_loaded(member, model, request.loaded, request.epoch)
            self._control.duties.assign()
        reply: m.OkPulled | None
        if (self._control.duties.holds_back(member) or self._draining) and not topic.over:
            reply = m.OkPulled(groups=[]) if last else None
        else:  # the replica may have loaded newer weights while this request was parked
            known = _weights(topic, member.epochs.get(model), member.loaded.get(model, -1))
            reply = producing.pull(topic, request, member.owner, max(asked, known), last)
        topic.askers.note(topic.schema.generator, member.owner, granted=reply is not None and bool(reply.groups), parked=reply is None)
        return reply

    def _take(self, request: m.Take, member: Member, last: bool) -> m.OkTaken | None:
        topic = self._run.topic(request.topic)
        if self._run.stopped:
            return m.OkTaken(version=topic.version, done=True)
        if self._draining and not topic.over:
            return m.OkTaken(version=topic.version) if last else None
        loaded = request.loaded
        if loaded is not None:
            self._control.check_loaded({topic.spec.model: loaded})
            loaded = max(loaded, member.loaded.get(topic.spec.model, -1))
        held_back = self._control.duties.holds_back_batches(topic.spec.model)
        reply = consuming.take(topic, request, member.owner, loaded, last, held_back)
        topic.askers.note(request.consumer, member.owner, granted=reply is not None and reply.lease != -1, parked=reply is None)
        return reply

    def _keyed_take(self, request: m.KeyedTake, member: Member, last: bool) -> m.OkKeyedTaken | None:
        if self._run.stopped:
            return m.OkKeyedTaken(partition=request.partition, task=request.task, done=True)
        if self._draining:
            return m.OkKeyedTaken(partition=request.partition, task=request.task) if last else None
        return self._run.keyed.take(request, last)

    def _commit(self, request: m.Commit) -> m.OkCommitted:
        topic = self._run.topic(request.topic)
        owner = self._owner(request)
        before = [terminal.clock for terminal in topic.terminals.values()]
        reply = committing.commit(topic, request, owner)
        if before != [terminal.clock for terminal in topic.terminals.values()]:  # not a repeat
            self._control.committed(request.model, reply.version)
        return reply

    def _failed(self, request: m.Failed) -> m.OkEmpty:
        if self._control.members.was_known(request.member):  # else it raised before it could register
            self._run.member(request)
        return self._control.failed(request)


def _weights(topic: TopicState, epoch: int | None, version: int) -> Weights:
    return (topic.clock_terminal.epoch_of(version) if epoch is None else epoch, version)
