"""One answer to "whose move is it?", and the two that every search may end with: a stage that does not ask, and a stage that nobody serves."""

from __future__ import annotations

from dataclasses import dataclass

from transfer_queue.controller.group import Group
from transfer_queue.controller.scene import Scene, roles_of
from transfer_queue.controller.terminal import Terminal
from transfer_queue.controller.topic import TopicState


@dataclass(frozen=True)
class Culprit:
    """`what` follows the members' names in the sentence; `since` is a time of the controller's clock."""

    stage: str
    members: list[str]
    what: str
    since: float
    waits_for: str
    gid: int = -1
    fix: str = ""


@dataclass(frozen=True)
class Case:
    """What is asked about: the batch of one terminal consumer of one topic."""

    scene: Scene
    topic: TopicState
    terminal: Terminal

    @property
    def number(self) -> int:
        return self.terminal.number

    @property
    def trainer(self) -> str:
        """The stage that the batch is for."""
        return self.topic.schema.consumers[self.number].name


def owes_take(case: Case, stage: str, why: str, group: Group | None = None) -> Culprit:
    """Work of this stage is ready, and nobody asks for it."""
    topic, scene = case.topic, case.scene
    gid = -1 if group is None else group.gid
    ready = f"the work of stage {stage!r}"
    since = topic.progress_at.get(stage, scene.runtime.changed_at)
    members = [member.owner for member in scene.serve(topic, stage)]
    if members:
        what = f"does not ask for more work, though {why}"
        return Culprit(stage, members, what, min(since, scene.now), ready, gid, f"read the log of {names(members)}")
    return nobody(case, stage, ready, why, gid)


def nobody(case: Case, stage: str, waits_for: str, why: str, gid: int = -1) -> Culprit:
    """No alive member serves the stage."""
    gone = case.scene.gone(case.topic, stage)
    if not gone:
        what = f"of {roles_of(case.scene, stage)} has joined, though {why}"
        return Culprit(stage, [], what, case.scene.runtime.changed_at, waits_for, gid, "start a worker of it, with this controller's URL")
    last = gone[0]
    cause = f" ({last.cause})" if last.cause else ""
    what = f"{last.how}{cause} and nobody else serves the stage, though {why}"
    return Culprit(stage, [last.owner], what, last.at, waits_for, gid, f"see what became of {names([last.owner])}, and start it again")


def names(owners: list[str]) -> str:
    """Without incarnations, as logs are called."""
    return ", ".join(owner.rpartition("#")[0] or owner for owner in owners)
