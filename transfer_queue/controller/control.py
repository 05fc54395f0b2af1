"""What members ask of the run itself: join, watch, leave, fail, publish weights, report. Control is desired state, never a call on a worker."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from transfer_queue.controller import ending
from transfer_queue.controller.config import CoreConfig
from transfer_queue.controller.desired import Desired, FrozenDesired
from transfer_queue.controller.duties import Duties, FrozenDuty
from transfer_queue.controller.errors import bad
from transfer_queue.controller.losing import lose, lose_shard
from transfer_queue.controller.members import (
    SHARD,
    FrozenMembers,
    Member,
    Members,
    check_entries,
    check_register,
    check_trace,
    check_word,
    shard_index,
)
from transfer_queue.controller.parked import Parked
from transfer_queue.controller.repeats import FIRST
from transfer_queue.controller.runtime import Runtime
from transfer_queue.controller.timers import Due, Timer
from transfer_queue.controller.topic import TopicState
from transfer_queue.messages import (
    PROTOCOL,
    Drain,
    Failed,
    Leave,
    MemberDead,
    OkDirective,
    OkEmpty,
    OkRegistered,
    OkRoster,
    Published,
    Record,
    Register,
    Report,
    Roster,
    Stop,
    Watch,
)
from transfer_queue.shard.messages import LIFE_BITS


class FrozenControl(Record, frozen=True):
    """What a snapshot keeps."""

    members: FrozenMembers
    beats: dict[str, Due]  # by member's name: when its heartbeat is looked at
    desired: FrozenDesired
    duties: list[FrozenDuty]


class Control:
    def __init__(self, topics: dict[str, TopicState], parked: Parked, runtime: Runtime, config: CoreConfig) -> None:
        self._topics = topics
        self._parked = parked
        self._runtime = runtime
        self._config, self._comeback_s = config.config, config.comeback_s
        self._heartbeat_s = config.heartbeat_s
        self._silence_ends = not config.keyed_only  # members but shards
        self._duty_s = config.duty_s
        self.members = Members()
        self.desired = Desired(runtime, self.members)
        self.duties = Duties(config.duties, runtime, self.members, self.desired)
        self.sweeps: list[tuple[int | None, str]] = []
        self.on_lost: Callable[[int], object] = lambda shard: None  # hears of every shard that ended, after its blocks were given up
        self.on_end: Callable[[str], object] = lambda owner: None  # hears of every member that ended
        self._beats: dict[str, Timer] = {}  # by name: each looks at the last heartbeat of an alive member
        for topic in topics.values():
            self.take_over(topic)

    def take_over(self, topic: TopicState) -> None:
        """This is the topic of its name from now on."""
        self.desired.versions[topic.spec.model] = topic.version
        topic.on_return = partial(lose, topic)

    def loaded(self, topic: TopicState) -> None:
        """A saved one came in its place: its history goes on, under the epoch of its last commit or a later one."""
        self.take_over(topic)
        self.desired.loaded[topic.spec.model] = topic.clock_terminal.epoch_of(topic.version)

    # ------------------------------------------------------------ joining and ending

    def register(self, request: Register) -> OkRegistered:
        check_register(request, PROTOCOL)
        self.members.refuse_join(request)
        old = self.members.find(request.name)
        if old is not None and old.joined_by == request.id >= FIRST:
            return self._registered(old)  # a repeat
        if old is not None:
            self.end(old, "replaced")
        member = self.members.add(request, self._runtime.now())
        if member.incarnation == 0:  # one that comes back is no progress, or a worker that dies at the same group again and again would look like it
            self._runtime.touch()
        if member.role == SHARD:
            self._runtime.wake("roster")
        self._runtime.emit("member", reason="joined", member=member.owner, data={"role": member.role, "host": member.host, "pid": member.pid})
        self.desired.changed()
        self._watch_heartbeat(member)
        return self._registered(member)

    def _registered(self, member: Member) -> OkRegistered:
        return OkRegistered(
            member=member.name,
            incarnation=member.incarnation,
            config=self._config,
            topics=[topic.spec for topic in self._topics.values()],
            shards=self.members.shards(),
            roster=self.members.roster,
            comeback_s=self._comeback_s,
            heartbeat_s=self._heartbeat_s if self._silence_ends or member.role == SHARD else 0.0,
        )

    def _watch_heartbeat(self, member: Member) -> None:
        """Where nothing is leased, nobody waits for a member that is silent."""
        if member.role != SHARD and not self._silence_ends:
            return
        self._beats[member.name] = self._runtime.timers.at(member.seen + self._heartbeat_s, partial(self._look_at, member))

    def _look_at(self, member: Member) -> float | None:
        """When its heartbeat would be overdue."""
        if self._runtime.now() < member.seen + self._heartbeat_s:
            return member.seen + self._heartbeat_s
        self.end(member, "died", f"no message for {self._heartbeat_s:g} s")
        return None

    def end(self, member: Member, how: str, cause: str = "") -> None:
        """how: died | left | replaced. Its attempts are reissued, its leases end, its requests are refused, its unpublished blocks are swept."""
        self.members.remove(member, how, cause, self._runtime.now())
        if (beat := self._beats.pop(member.name, None)) is not None:
            self._runtime.timers.cancel(beat)
        self._parked.disown(member.owner)
        self._runtime.repeats.forget(member.owner)
        for topic in self._topics.values():
            ending.forget_owner(topic, member.owner, how)
        self.duties.lost(member)
        self.on_end(member.owner)
        self.sweeps.append((None, member.owner))
        self._runtime.blocks.swept((shard.index for shard in self.members.shards()), member.owner)
        self._runtime.emit("member", reason=how, member=member.owner, data={"role": member.role, "cause": cause})
        self.desired.changed()
        if member.role == SHARD:
            self._runtime.wake("roster")
            if not self.desired.stopped:
                self._lose(member)

    def _lose(self, shard: Member) -> None:
        index, before = shard_index(shard.name), shard.incarnation + 1 << LIFE_BITS
        self._runtime.blocks.lose(index, before)
        for topic in self._topics.values():
            if not topic.over:
                lose_shard(topic, index, before)
        self.on_lost(index)

    def end_all(self, cause: str, numbers: int) -> None:
        """So many incarnations of any name may have been given that nobody remembers."""
        for member in list(self.members):
            self.end(member, "died", cause)
        self.members.skip_incarnations(numbers)

    def leave(self, request: Leave) -> OkEmpty:
        """A repeat changes nothing."""
        ended = self.members.ended.get(request.member)
        if ended is None or ended.how != "left" or ended.owner != f"{request.member}#{request.incarnation}":
            self.end(self.members.check(request.member, request.incarnation, self._runtime.now()), "left")
        return OkEmpty()

    def failed(self, request: Failed) -> OkEmpty:
        """A worker raised: the run ends with its name and traceback."""
        reason = f"{request.member} raised: {request.error}"
        self._runtime.emit("run", reason=reason, member=f"{request.member}#{request.incarnation}", data={"traceback": request.traceback})
        self.desired.stop(reason)
        return OkEmpty()

    def member_dead(self, request: MemberDead) -> OkEmpty:
        """A notice about an incarnation that was replaced meanwhile changes nothing; a fatal one stops the run also if the heartbeat was faster."""
        member = self.members.find(request.member)
        if member is not None and (request.incarnation not in (-1, member.incarnation) or request.pid not in (-1, member.pid)):
            return OkEmpty()
        if request.fatal:
            self.desired.stop(f"{request.member} died: {request.cause}")
        if member is not None:
            self.end(member, "died", request.cause)
        return OkEmpty()

    def drain(self, request: Drain) -> OkEmpty:
        self.desired.drain(request.reason)
        return OkEmpty()

    def stop(self, request: Stop) -> OkEmpty:
        self.desired.stop(request.reason, asked=True)
        return OkEmpty()

    # ------------------------------------------------------------ snapshots

    def freeze(self) -> FrozenControl:
        beats = {name: timer.due for name, timer in self._beats.items()}
        return FrozenControl(self.members.freeze(), beats, self.desired.freeze(), self.duties.freeze())

    def thaw(self, frozen: FrozenControl) -> None:
        self.members.thaw(frozen.members)
        self.desired.thaw(frozen.desired)
        self.duties.thaw(frozen.duties)
        for member in self.members:
            if member.name in frozen.beats:
                self._beats[member.name] = self._runtime.timers.restore(partial(self._look_at, member), frozen.beats[member.name])

    # ------------------------------------------------------------ watching

    def roster(self, request: Roster, last: bool) -> OkRoster | None:
        members = self.members
        return OkRoster(number=members.roster, shards=members.shards()) if last or request.known != members.roster else None

    def heard(self, member: Member, request: Watch) -> None:
        """Take in what a heartbeat says; once a message, however often it is tried. Nothing of one that breaks a rule."""
        check_entries("endpoints", request.endpoints)
        check_entries("URLs of endpoints", request.endpoints.values())
        check_entries("loaded", request.loaded)
        check_entries("epochs", request.epochs)
        check_entries("busy", request.busy)
        check_trace(request.trace)
        self.check_loaded(request.loaded)
        for model, version in request.loaded.items():
            self.note_loaded(member, model, version, request.epochs.get(model))
        working = request.busy.get("busy", 0.0) > member.busy.get("busy", 0.0)
        if working and member.duty is not None and self._runtime.now() < member.duty_since + self._duty_s:
            self._runtime.touch()  # evaluation changes no ledger, yet it is progress; one that hangs looks busy too, so not for ever
        member.spent(request.busy, self._runtime.now())
        if member.role == SHARD and (told := self._runtime.blocks.told.get(shard_index(member.name))) is not None:
            told.confirm(request.busy)
        if request.duty_done is not None:
            self.duties.done(member, request.duty_done)
        self.duties.assign()  # what it loaded may make it the one: its reply says so at once
        if not request.endpoints.items() <= member.endpoints.items():
            member.endpoints.update(request.endpoints)
            self.desired.changed()
        self.desired.acknowledge(member, request.seen)
        if request.trace:
            self._runtime.trace(member.owner, member.role, request.trace)

    def watch(self, member: Member, request: Watch, last: bool) -> OkDirective | None:
        directive = self.desired.directive(member) if last else self.desired.news(member, request.seen)
        return None if directive is None else OkDirective(directive=directive)

    def check_loaded(self, loaded: dict[str, int]) -> None:
        """Nobody computes with weights that were never committed: the staleness bound is counted from what members say."""
        for model, version in loaded.items():
            clock = self.desired.versions.get(model)
            if clock is not None and not -1 <= version <= clock:
                raise bad(
                    f"loaded={version} of {model!r} is outside [-1, {clock}] (none, what is committed): the bound on staleness would not hold; "
                    "nothing was done. Report the version of the weights that were received"
                )

    def note_loaded(self, member: Member, model: str, version: int, epoch: int | None) -> None:
        """The member computes with this version now: what waited for it may go on. `epoch` None: the one in which it was made."""
        if (member.loaded.get(model), member.epochs.get(model)) == (version, epoch):
            return
        member.loaded[model] = version
        member.epochs.pop(model, None)
        if epoch is not None:
            member.epochs[model] = epoch
        for topic in self._topics.values():
            if topic.spec.model == model:
                self._runtime.wake("pull", topic.name)
                for number in range(len(topic.schema.consumers)):
                    topic.wake_takers(number)

    def tell_cancelled(self, owner: str, gid: int, fence: int) -> None:
        member = self.members.find(owner.rpartition("#")[0])
        if member is not None and member.owner == owner:
            self.desired.cancel(member, gid, fence)

    # ------------------------------------------------------------ weights and facts

    def published(self, member: Member, request: Published) -> OkEmpty:
        """The newest by (epoch, version) is desired; nothing uncommitted ever is."""
        weights = request.weights
        clock = self.desired.versions.get(weights.model, 0)
        if not 0 <= weights.version <= clock:
            raise bad(
                f"version={weights.version} of {weights.model!r} is outside [0, {clock}], what is committed: no receiver may hold uncommitted "
                "weights, so it is not desired; commit first, then publish"
            )
        newest = self.desired.weights.get(weights.model)
        if newest is not None and (newest.epoch, newest.version) >= (weights.epoch, weights.version):
            if (newest.epoch, newest.version) == (weights.epoch, weights.version) and newest.digest != weights.digest:
                raise bad(
                    f"digest={weights.digest!r} of {weights.model!r} {weights.epoch}.{weights.version} differs from {newest.digest!r}, published "
                    "before: one version would name two sets of weights; it is not desired. Commit a new version for new weights"
                )
            return OkEmpty()
        loaded = self.desired.loaded.get(weights.model, 0)
        if weights.epoch < loaded and clock > 0:
            raise bad(
                f"epoch={weights.epoch} of {weights.model!r} {weights.epoch}.{weights.version} is older than {loaded}, in which the queue that was "
                f"loaded committed last: no group could start with them, so they are not desired. Publish under epoch {loaded} or a later one"
            )
        check_entries("published models", {*self.desired.weights, weights.model})
        check_word("digest", weights.digest)
        self.desired.weights[weights.model] = weights
        self.desired.published_by[weights.model], self.desired.published_at[weights.model] = member.owner, self._runtime.now()
        self._runtime.touch()
        self._runtime.emit(
            "published", version=weights.version, member=member.owner, data={"model": weights.model, "epoch": weights.epoch, "digest": weights.digest}
        )
        self.duties.published(weights.model, weights.version)
        self.desired.changed()
        return OkEmpty()

    def committed(self, model: str, version: int) -> None:
        self.desired.versions[model] = version
        self.desired.changed()

    def report(self, member: Member, request: Report) -> OkEmpty:
        self._runtime.touch()
        self._runtime.emit("report", reason=request.kind, member=member.owner, data=request.data)
        return OkEmpty()
