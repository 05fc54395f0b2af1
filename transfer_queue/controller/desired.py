"""Desired state: what every member is told, and the revision by which it knows that it changed."""

from __future__ import annotations

import msgspec

from transfer_queue.controller.members import Member, Members
from transfer_queue.controller.runtime import Runtime
from transfer_queue.messages import Directive, ModelVersion, Record, RunState

MAX_CANCELLED = 4096  # attempts that one directive tells of


class FrozenDesired(Record, frozen=True):
    """What a snapshot keeps; as `Desired`."""

    revision: int
    common: int
    state: RunState
    reason: str
    warning: str
    weights: dict[str, ModelVersion]
    published_by: dict[str, str]
    published_at: dict[str, float]
    versions: dict[str, int]
    loaded: dict[str, int] = msgspec.field(default_factory=dict)


class Desired:
    def __init__(self, runtime: Runtime, members: Members) -> None:
        self._runtime = runtime
        self._members = members
        self._revision = 0  # counts every change
        self._common = 0  # revision of the last change that concerns everybody
        self.state: RunState = "run"
        self.reason = ""
        self.warning = ""
        self.weights: dict[str, ModelVersion] = {}  # newest published, by model
        self.published_by: dict[str, str] = {}  # owner, by model
        self.published_at: dict[str, float] = {}  # seconds of the controller's clock, by model
        self.versions: dict[str, int] = {}  # newest committed, by model
        self.loaded: dict[str, int] = {}  # epoch of the last commit of a saved queue that was loaded, by model

    @property
    def stopped(self) -> bool:
        return self.state == "stop"

    def changed(self) -> None:
        """Everybody is to be told."""
        self._revision += 1
        self._common = self._revision
        for member in self._members:
            self._runtime.wake("watch", "", member.name)

    def changed_for(self, member: Member) -> None:
        self._revision += 1
        member.revision = self._revision
        self._runtime.wake("watch", "", member.name)

    def warn(self, text: str) -> None:
        """Tell people ("": what was told is over)."""
        if text != self.warning:
            self.warning = text
            self.changed()

    @property
    def draining(self) -> bool:
        """Nothing new is handed out."""
        return self.state == "drain"

    def drain(self, reason: str) -> None:
        """The first reason stands, and so does a stop."""
        if self.draining or self.stopped:
            return
        self.state, self.reason = "drain", reason
        self._runtime.emit("run", dst="drain", reason=reason)
        self.changed()

    def stop(self, reason: str, asked: bool = False) -> bool:
        """The first reason stands. True if this call stopped the run. `asked`: somebody wants it to end, nothing went wrong."""
        if self.stopped:
            return False
        self.state = "stop"
        self.reason = reason
        self._runtime.emit("run", dst="stop", reason=reason, data={"asked": 1} if asked else {})
        self.changed()
        self._runtime.wake("all")
        return True

    def freeze(self) -> FrozenDesired:
        told = (self.state, self.reason, self.warning)
        published = (self.weights, self.published_by, self.published_at)
        return FrozenDesired(self._revision, self._common, *told, *published, self.versions, self.loaded)

    def thaw(self, frozen: FrozenDesired) -> None:
        self._revision, self._common = frozen.revision, frozen.common
        self.state, self.reason, self.warning = frozen.state, frozen.reason, frozen.warning
        self.weights, self.published_by, self.published_at = frozen.weights, frozen.published_by, frozen.published_at
        self.versions, self.loaded = frozen.versions, dict(frozen.loaded)

    def cancel(self, member: Member, gid: int, fence: int) -> None:
        """An attempt of the member was ended by us. One that never acknowledges learns of the oldest by `closed` in other replies."""
        self.changed_for(member)
        member.cancelled[gid, fence] = member.revision
        if len(member.cancelled) > MAX_CANCELLED:
            del member.cancelled[next(iter(member.cancelled))]

    def acknowledge(self, member: Member, seen: int) -> None:
        """The member has seen this revision: what it was told by then need not be repeated."""
        for attempt in [attempt for attempt, revision in member.cancelled.items() if revision <= seen]:
            del member.cancelled[attempt]

    def news(self, member: Member, seen: int) -> Directive | None:
        """The directive if it is newer than `seen`."""
        return self.directive(member) if max(self._common, member.revision) > seen else None

    def directive(self, member: Member) -> Directive:
        return Directive(
            revision=max(self._common, member.revision),
            state=self.state,
            reason=self.reason,
            warning=self.warning,
            duty=member.duty,
            weights=dict(self.weights),
            versions=dict(self.versions),
            endpoints=self._members.endpoints(),
            members=self._members.epoch,
            alive=[other.owner for other in self._members],
            cancelled=sorted(member.cancelled),
        )
