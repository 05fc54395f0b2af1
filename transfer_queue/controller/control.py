"""What members ask of the run itself: join, watch, leave, fail, publish weights, report. Control is desired state, never a call on a worker."""

from __future__ import annotations

from transfer_queue.controller.config import CoreConfig
from transfer_queue.controller.desired import Desired
from transfer_queue.controller.duties import Duties
from transfer_queue.controller.errors import bad
from transfer_queue.controller.members import SHARD, Member, Members, check_entries, check_register, check_trace
from transfer_queue.controller.parked import Parked
from transfer_queue.controller.runtime import Runtime
from transfer_queue.controller.topic import TopicState
from transfer_queue.messages import (
    PROTOCOL,
    Failed,
    MemberDead,
    OkDirective,
    OkEmpty,
    OkRegistered,
    Published,
    Register,
    Report,
    Stop,
    Watch,
)


class Control:
    def __init__(self, topics: dict[str, TopicState], parked: Parked, runtime: Runtime, config: CoreConfig) -> None:
        self._topics = topics
        self._parked = parked
        self._runtime = runtime
        self._config = config.config
        self._heartbeat_s = config.heartbeat_s
        self._duty_s = config.duty_s
        self.members = Members()
        self.desired = Desired(runtime, self.members)
        self.duties = Duties(config.duties, runtime, self.members, self.desired)
        self.sweeps: list[tuple[int | None, str]] = []
        for topic in topics.values():
            self.desired.versions[topic.spec.model] = topic.version

    # ------------------------------------------------------------ joining and ending

    def register(self, request: Register) -> OkRegistered:
        check_register(request, PROTOCOL)
        self.members.refuse_join(request)
        old = self.members.find(request.name)
        if old is not None:
            self.end(old, "replaced")
        member = self.members.add(request, self._runtime.now())
        if member.incarnation == 0:  # one that comes back is no progress, or a worker that dies at the same group again and again would look like it
            self._runtime.touch()
        self._runtime.emit("member", reason="joined", member=member.owner, data={"role": member.role, "host": member.host, "pid": member.pid})
        self.desired.changed()
        self._watch_heartbeat(member)
        return OkRegistered(
            member=member.name,
            incarnation=member.incarnation,
            config=self._config,
            topics=[topic.spec for topic in self._topics.values()],
            shards=self.members.shards(),
        )

    def _watch_heartbeat(self, member: Member) -> None:
        def check() -> float | None:
            if not member.alive:
                return None
            if self._runtime.now() < member.seen + self._heartbeat_s:
                return member.seen + self._heartbeat_s
            self.end(member, "died", f"no message for {self._heartbeat_s:g} s")
            return None

        self._runtime.timers.at(member.seen + self._heartbeat_s, check)

    def end(self, member: Member, how: str, cause: str = "") -> None:
        """how: died | left | replaced. Its attempts are reissued, its leases end, its requests are refused, its unpublished blocks are swept."""
        self.members.remove(member, how, cause, self._runtime.now())
        self._parked.disown(member.owner)
        for topic in self._topics.values():
            topic.forget_owner(member.owner, how)
        self.duties.lost(member)
        self.sweeps.append((None, member.owner))
        self._runtime.emit("member", reason=how, member=member.owner, data={"role": member.role, "cause": cause})
        self.desired.changed()
        if member.role == SHARD:
            self.desired.stop(f"{member.name} {how}: the samples it held are gone{f' ({cause})' if cause else ''}")

    def leave(self, member: Member) -> OkEmpty:
        self.end(member, "left")
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
        if member is not None and request.incarnation not in (-1, member.incarnation):
            return OkEmpty()
        if request.fatal:
            self.desired.stop(f"{request.member} died: {request.cause}")
        if member is not None:
            self.end(member, "died", request.cause)
        return OkEmpty()

    def stop(self, request: Stop) -> OkEmpty:
        self.desired.stop(request.reason, asked=True)
        return OkEmpty()

    # ------------------------------------------------------------ watching

    def heard(self, member: Member, request: Watch) -> None:
        """Take in what a heartbeat says; once a message, however often it is tried. Nothing of one that breaks a rule."""
        check_entries("endpoints", request.endpoints)
        check_entries("loaded", request.loaded)
        check_trace(request.trace)
        self.check_loaded(request.loaded)
        for model, version in request.loaded.items():
            self.note_loaded(member, model, version)
        working = request.busy.get("busy", 0.0) > member.busy.get("busy", 0.0)
        if working and member.duty is not None and self._runtime.now() < member.duty_since + self._duty_s:
            self._runtime.touch()  # evaluation changes no ledger, yet it is progress; one that hangs looks busy too, so not for ever
        member.spent(request.busy, self._runtime.now())
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

    def note_loaded(self, member: Member, model: str, version: int) -> None:
        """The member computes with this version now: what waited for it may go on."""
        if member.loaded.get(model) == version:
            return
        member.loaded[model] = version
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
        check_entries("published models", {*self.desired.weights, weights.model})
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
