"""What a stall report looks at: the whole state of the controller, and who serves which stage. It reads and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from transfer_queue.controller.config import CoreConfig
from transfer_queue.controller.desired import Desired
from transfer_queue.controller.duties import Duties
from transfer_queue.controller.members import Ended, Member, Members
from transfer_queue.controller.parked import Parked
from transfer_queue.controller.runtime import Runtime
from transfer_queue.controller.topic import TopicState

SILENT_S = 3.0  # three heartbeats: a member that was not heard of for longer is stopped, out of reach, or does not let its heartbeat run
PUBLISH = "publish"  # the stage of whoever brings a committed version to the others


@dataclass(frozen=True)
class Scene:
    config: CoreConfig
    topics: list[TopicState]
    members: Members
    parked: Parked
    desired: Desired
    duties: Duties
    runtime: Runtime
    doing: Callable[[str], str]  # member's name → what its process does now, "" where nobody can tell

    @property
    def now(self) -> float:
        return self.runtime.now()

    def alive(self, owner: str) -> Member | None:
        member = self.members.find(owner.rpartition("#")[0])
        return member if member is not None and member.owner == owner else None

    def serve(self, topic: TopicState, stage: str) -> list[Member]:
        """Members that serve the stage: by their role, or because they asked for its work."""
        names = topic.askers.of(stage).keys()
        return [member for member in self.members if member.name in names or stage in self.config.roles.get(member.role, ())]

    def gone(self, topic: TopicState, stage: str) -> list[Ended]:
        """Those that served it and ended, the last one first."""
        names = topic.askers.of(stage).keys()
        ended = self.members.ended.items()
        found = [end for name, end in ended if name in names or stage in self.config.roles.get(end.role, ())]
        return sorted(found, key=lambda end: -end.at)

    def silent(self, member: Member) -> bool:
        return self.now - member.seen >= SILENT_S

    def state(self, member: Member) -> str:
        """How it spends its time, as far as it can be known from here."""
        if self.silent(member):
            why = "its process is stopped, starved or out of reach"
            return f"{member.owner} was not heard of for {self.now - member.seen:.1f} s: {why}"
        doing = f" ({doing})" if (doing := self.doing(member.name)) else ""
        spent = self.now - member.activity_since
        if member.activity == "busy":
            return f"{member.owner} has been busy{doing} without a break for {spent:.1f} s: it computes, or hangs"
        if member.activity == "paused":
            return f"{member.owner} has been paused{doing} for {spent:.1f} s: it loads weights or does its duty, or hangs there"
        if member.activity == "wait":
            return f"{member.owner} has been waiting{doing} for {spent:.1f} s"
        return f"{member.owner} is alive{doing}"


def roles_of(scene: Scene, stage: str) -> str:
    """The roles that serve it, for a sentence."""
    roles = [role for role, stages in scene.config.roles.items() if stage in stages]
    return f"role {' or '.join(map(repr, roles))}" if roles else f"a role that serves stage {stage!r}"
