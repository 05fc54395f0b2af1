"""Whose move it is where weights are awaited, or a duty: who owes the version, its bytes, its load, or the evaluation."""

from __future__ import annotations

from transfer_queue.controller.culprit import Case, Culprit, names, nobody, owes_take
from transfer_queue.controller.group import Group
from transfer_queue.controller.members import Member
from transfer_queue.controller.scene import PUBLISH


def first_duty(case: Case) -> Culprit:
    """No batch is handed out before it is done."""
    if marked := case.scene.duties.marked():
        return on_duty(marked, -1)
    roles = {duty.role for duty in case.scene.config.duties}
    able = [member for member in case.scene.members if member.role in roles]
    if not able:
        return nobody(case, case.topic.schema.generator, "the first duty", "no batch is handed out before the first duty is done")
    return weights(case, 0, able, case.topic.schema.generator, None)


def on_duty(members: list[Member], gid: int) -> Culprit:
    member = members[0]
    what = f"has the duty {member.duty!r} and takes no prompt before it is done"
    fix = f"read the log of {names([member.owner])}; if it takes so long, raise stall_s"
    return Culprit(str(member.duty), [each.owner for each in members], what, member.duty_since, f"the duty {member.duty!r}", gid, fix)


def after_the_last_commit(case: Case) -> Culprit:
    topic, scene = case.topic, case.scene
    if marked := scene.duties.marked():
        return on_duty(marked, -1)
    roles = {duty.role for duty in scene.config.duties}
    able = [member for member in scene.members if member.role in roles]
    return weights(case, topic.version, able, topic.schema.generator, None)


def weights(case: Case, needed: int, members: list[Member], stage: str, group: Group | None) -> Culprit:
    """These members wait for weights of version `needed`: it was never published, or never arrived, or is not loaded."""
    topic, scene = case.topic, case.scene
    model, gid = topic.spec.model, -1 if group is None else group.gid
    published = scene.desired.weights.get(model)
    if published is None or published.version < needed:
        return unpublished(case, needed, gid)
    behind = [member for member in members if member.loaded.get(model, -1) < needed]
    if not behind:
        return owes_take(case, stage, "it has the weights and work is there", group)
    owners = [member.owner for member in behind]
    loading = [member for member in behind if member.activity in ("busy", "paused") or scene.silent(member)]
    waits = f"weights {published.version} of {model!r}"
    if loading:
        owners = [member.owner for member in loading]
        what = f"has not loaded version {needed} of {model!r}, which is published"
        return Culprit(stage, owners, what, scene.desired.published_at[model], waits, gid, f"read the log of {names(owners)}")
    publishers = [member.owner for member in scene.serve(topic, PUBLISH)] or [scene.desired.published_by[model]]
    if not any(scene.alive(owner) for owner in publishers):
        return nobody(case, PUBLISH, waits, f"{names(owners)} waits for the bytes of version {published.version}", gid)
    what = f"has published version {published.version} of {model!r}, and {', '.join(owners)} has not received it"
    fix = f"read the logs of {names(publishers)} and {names(owners)} (the receiver's thread), and see whether they can connect"
    return Culprit(PUBLISH, [*publishers, *owners], what, scene.desired.published_at[model], waits, gid, fix)


def unpublished(case: Case, needed: int, gid: int) -> Culprit:
    """Order: optimizer step → commit → copy out into the publisher's slot → published."""
    topic, scene = case.topic, case.scene
    waits, why = f"weights {needed} of {topic.spec.model!r}", f"version {needed} of {topic.spec.model!r} is waited for"
    since = topic.progress_at.get(case.trainer, scene.runtime.changed_at)
    publishers = scene.serve(topic, PUBLISH)
    if not publishers and (scene.gone(topic, PUBLISH) or scene.config.roles):
        return nobody(case, PUBLISH, waits, why, gid)
    stuck = [member.owner for member in publishers if scene.silent(member)]
    trainers = scene.serve(topic, case.trainer)
    if not trainers and not stuck:
        return nobody(case, case.trainer, waits, why, gid)
    owners = [member.owner for member in publishers]
    if stuck or topic.askers.waiting(case.trainer):
        owners = stuck or owners or [scene.desired.published_by.get(topic.spec.model, "the publisher")]
        what = f"has not published version {needed} of {topic.spec.model!r}, which is waited for"
        return Culprit(PUBLISH, owners, what, since, waits, gid, f"read the log of {names(owners)}")
    both = [*(member.owner for member in trainers), *owners]
    what = f"does not come back from handing version {needed} of {topic.spec.model!r} to the publisher"
    return Culprit(case.trainer, both, what, since, waits, gid, f"read the logs of {names(both)}")
