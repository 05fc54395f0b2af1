"""Whose move it is in a run that makes no progress: from the trainer's batch back to the first stage that could go on and does not.

Each step asks one question, whose answer is a culprit or the next question: is the batch whole (then its owner owes the commit)? Could groups be
taken (then the trainer owes a take)? Else what does the oldest group wait for: its producer, a column, and of that column the first stage whose
inputs are there? Without a group: what keeps the next prompt from being handed out? And wherever weights are awaited: who owes the version?
"""

from __future__ import annotations

import numpy as np

from transfer_queue.controller.blame_weights import after_the_last_commit, first_duty, on_duty, weights
from transfer_queue.controller.culprit import Case, Culprit, names, nobody, owes_take
from transfer_queue.controller.group import SERVED, Group
from transfer_queue.controller.leases import Lease
from transfer_queue.controller.members import SHARD
from transfer_queue.controller.producing import admission_bound
from transfer_queue.controller.rounds import waits_for_its_rank
from transfer_queue.controller.scene import Scene
from transfer_queue.controller.topic import TopicState
from transfer_queue.messages import Blame

SHOWN = 8  # gids, rows and names in a sentence
KEYED = "keyed"  # in place of a stage, where there are no topics


def blame(scene: Scene) -> Blame:
    """Of the first topic that is not through."""
    topics = [topic for topic in scene.topics if not topic.over] or scene.topics
    topic = topics[0] if topics else None
    found = _stopped_shard(scene) or _no_shard(scene) or (_of_no_topic(scene) if topic is None else find(_case(scene, topic)))
    return Blame(found.stage, found.members, found.gid, found.waits_for, scene.now - found.since, _sentence(scene, topic, found))


def _case(scene: Scene, topic: TopicState) -> Case:
    return Case(scene, topic, min(topic.terminals.values(), key=lambda terminal: terminal.trained))


def _of_no_topic(scene: Scene) -> Culprit:
    """Keyed partitions alone: whoever waits there, waits for a put that nobody owes."""
    return Culprit(KEYED, [], "owes anything: this queue has keyed partitions only", scene.runtime.changed_at, "a put")


def _sentence(scene: Scene, topic: TopicState | None, found: Culprit) -> str:
    first, others = found.members[:1], found.members[1:SHOWN]
    who = " ".join([*first, f"(or {', '.join(others)})"] if others else first) or "nobody"
    group = None if topic is None else topic.groups.get(found.gid)
    shown = "" if group is None else f"group {group.gid} (version {group.version}, {group.state}) waits for it; "
    states = [scene.state(member) for owner in found.members[:2] if (member := scene.alive(owner)) is not None]
    parts = [f"stage {found.stage!r}: {who} {found.what} (since {scene.now - found.since:.1f} s)", *states]
    return f"{'; '.join(parts)}; {shown}{found.fix}".rstrip("; ")


def _stopped_shard(scene: Scene) -> Culprit | None:
    """Every stage reads from the shards, so one that does not answer stops them all, whatever they seem to wait for."""
    for member in scene.members:
        if member.role == SHARD and scene.silent(member):
            fix = f"look for its process on {member.host} (pid {member.pid})"
            return Culprit(SHARD, [member.owner], "does not answer, and every stage reads its bytes", member.seen, "bytes of rows", fix=fix)
    return None


def _no_shard(scene: Scene) -> Culprit | None:
    """There were shards, and none is left: nobody can store anything."""
    ended = [end for end in scene.members.ended.values() if end.role == SHARD]
    if not ended or any(member.role == SHARD for member in scene.members):
        return None
    last = max(ended, key=lambda end: end.at)
    what = f"{last.how}{f' ({last.cause})' if last.cause else ''} and no other shard is there, so nobody can store bytes"
    return Culprit(SHARD, [last.owner], what, last.at, "a shard", fix=f"see what became of {names([last.owner])}, and start it again")


def find(case: Case) -> Culprit:
    """The questions, in order."""
    if case.topic.over:
        return after_the_last_commit(case)
    terminal, topic = case.terminal, case.topic
    missing = terminal.batch_size(topic.prompts.target) - len(terminal.batch)
    if terminal.batch and missing <= 0:
        return owes_commit(case)
    if case.scene.duties.holds_back_batches(topic.spec.model):
        return first_duty(case)
    if takeable(case) and not topic.askers.waiting(case.trainer):
        return owes_take(case, case.trainer, "groups are ready for it")
    group = oldest(case)
    return admission(case) if group is None else of_group(case, group)


# ------------------------------------------------------------ the trainer


def owes_commit(case: Case) -> Culprit:
    leases = [lease for lease in case.topic.leases if lease.consumer == case.number]
    if untaken := [lease for lease in leases if waits_for_its_rank(lease)]:
        return owes_part(case, case.trainer, untaken)
    batch = case.terminal.batch
    owners = list(dict.fromkeys(lease.owner for lease in leases))
    what = f"has the whole batch of step {case.terminal.clock} (groups {sorted(batch)[:SHOWN]}) and does not commit it"
    fix = f"read the log of {names(owners)}; if a step takes so long, raise stall_s"
    since, waits = max(lease.since for lease in leases), f"the commit of step {case.terminal.clock}"
    return Culprit(case.trainer, owners, what, since, waits, min(batch), fix)


def owes_part(case: Case, stage: str, untaken: list[Lease]) -> Culprit:
    """A round was dealt, and a rank does not ask for what it got."""
    first = min(untaken, key=lambda lease: (lease.since, lease.id))
    ranks = list(dict.fromkeys(lease.owner for lease in untaken))
    what = f"does not take its part of a round that was dealt to all ranks (groups {first.gids()[:SHOWN]})"
    fix = f"start the worker of {names(ranks)}, or read its log"
    return Culprit(stage, ranks, what, first.since, f"a take of {first.owner}", next(iter(first.gids()), -1), fix)


def takeable(case: Case) -> bool:
    """Whether a take would get a group, at least one."""
    terminal = case.terminal
    head = terminal.ready.version(case.topic.version)
    oldest = terminal.outside.min()
    return head is not None and not (case.topic.window.ordered and oldest is not None and head > oldest)


# ------------------------------------------------------------ groups


def oldest(case: Case) -> Group | None:
    """The open group that the batch waits for: oldest version first, for that one holds back all others under `wait`."""
    table, slots, number = case.topic.groups.groups, case.topic.groups.all(), case.number
    ready = table.closed[slots] & (table.pending[slots, number] == 0)
    slots = slots[~(ready | table.leased[slots, number] | table.acked[slots, number])]
    order = np.lexsort((table.gid[slots], table.version[slots]))
    return Group(case.topic.groups, int(slots[order[0]])) if len(slots) else None


def of_group(case: Case, group: Group) -> Culprit:
    if group.closed:
        return of_stage(case, debtor(case, group, case.number), group)
    if group.holder is None:
        needed = case.topic.restart_version(group)
        return producers(case, needed, group)
    what = f"generates group {group.gid} (rows {group.missing_rows()[:SHOWN]}) without a new token"
    fix = f"read the log of {names([group.holder])}{lapses(group)}"
    since = group.deadline - case.topic.lease_s
    waits = f"rows {group.missing_rows()[:SHOWN]} of group {group.gid}"
    return Culprit(case.topic.schema.generator, [group.holder], what, since, waits, group.gid, fix)


def debtor(case: Case, group: Group, number: int) -> int:
    """The consumer that could serve the group now and on which consumer `number` waits, maybe through others."""
    schema = case.topic.schema
    for row in group.rows.values():
        for name in schema.consumers[number].inputs:
            owner = next((other for other, consumer in enumerate(schema.consumers) if name in consumer.outputs), None)
            if owner is not None and name not in row.columns and number in schema.readers[name]:
                parts = group.rows.values() if schema.consumers[owner].unit == "group" else [row]
                return debtor(case, group, owner) if any(part.missing[owner] > 0 for part in parts) else owner
    return number


def of_stage(case: Case, number: int, group: Group) -> Culprit:
    """Stage `number` owes its columns of a group whose inputs are there."""
    stage, topic = case.topic.schema.consumers[number].name, case.topic
    # those that lapsed first; one whose rows of the group somebody else has written owes nothing of it
    held = (*topic.leases.lapsed(), *topic.leases.holding(np.array([group.slot])))
    leases = [lease for lease in held if lease.consumer == number and lease.holds(group)]
    if leases and all(map(waits_for_its_rank, leases)):
        return owes_part(case, stage, leases)
    if leases:
        return holder(case, leases, group)
    rows = [row for row in group.rows.values() if row.missing[number] != SERVED]
    newest = max((row.newest for row in rows), default=0)
    waiting = topic.askers.waiting(stage)
    alive = [member for owner in waiting if (member := case.scene.alive(owner)) is not None]
    if alive and topic.schema.consumers[number].needs_weights:
        return weights(case, newest, alive, stage, group)
    if alive:
        what, owners = f"asks for more than the {topic.queues.rows[number]} rows that are ready", [member.owner for member in alive]
        return Culprit(stage, owners, what, min(waiting.values()), f"a take of {stage!r}", group.gid, "lower at_least")
    at_work = [lease for member in case.scene.serve(topic, stage) for lease in topic.leases.answerable(member.owner) if lease.count()]
    if at_work:  # on rows of other groups, or at another stage
        return holder(case, at_work, group)
    return owes_take(case, stage, f"{topic.queues.rows[number]} rows are ready for it", group)


def holder(case: Case, leases: list[Lease], group: Group) -> Culprit:
    """A member works through what it was given in order of the leases' ids: the first that it owes, at whichever stage, is what it is at."""
    owner = leases[0].owner
    everything = sorted(case.topic.leases.answerable(owner), key=lambda lease: lease.id)
    first = next((lease for lease in everything if lease.count()), leases[0])
    stage = case.topic.schema.consumers[first.consumer].name
    lapsed = first in case.topic.leases.lapsed()
    had = f"had lease {first.id} until it ran out after lease_s = {case.topic.lease_s:g} s" if lapsed else f"holds lease {first.id}"
    what = f"{had} ({first.count()} rows of groups {first.gids()[:SHOWN]}) and has written nothing of it"
    slow = f"raise lease_s above the time that it takes{'' if lapsed else ', and stall_s'}"
    fix = f"read the log of {names([owner])}; if it is only slow, {slow}"
    shown = group.gid if group.gid in first.gids() else first.gids()[0]
    owners = [owner, *(lease.owner for lease in leases if lease.owner != owner)]
    return Culprit(stage, list(dict.fromkeys(owners)), what, first.since, f"columns of stage {stage!r}", shown, fix)


def lapses(group: Group) -> str:
    if group.lapses == 0:
        return ""
    return f" (its generation made no progress within lease_s {group.lapses} times: if the first token takes so long, raise lease_s)"


# ------------------------------------------------------------ prompts


def admission(case: Case) -> Culprit:
    """No open group is to blame: why is no other one begun?"""
    topic, scene = case.topic, case.scene
    bound = admission_bound(topic)
    if bound == "prompts":
        return source(case)
    if bound:
        what = f"may start nothing: {bound} bounds admission, and every open group is in the batch"
        return Culprit(topic.schema.generator, [], what, scene.runtime.changed_at, "a permit", fix="raise staleness or flow.budget_bytes")
    return producers(case, topic.window.min_version(topic.version, topic.ledger.open), None)


def source(case: Case) -> Culprit:
    topic = case.topic
    if topic.given:  # groups come whole here, and no prompt will
        return owes_take(case, topic.schema.generator, "there is room for more groups than were put")
    stage = topic.schema.source
    return owes_take(case, stage, f"{topic.prompts.wanted(topic.ledger.trained, topic.ledger.open)} prompts are wanted and none waits")


def producers(case: Case, needed: int, group: Group | None) -> Culprit:
    """A group could be started with weights of version `needed`. Who should?"""
    topic, scene = case.topic, case.scene
    stage = topic.schema.generator
    members = scene.serve(topic, stage)
    gid = -1 if group is None else group.gid
    waiting = topic.askers.waiting(stage)
    free = [member for member in members if member.owner in waiting and not scene.duties.holds_back(member)]
    why = "prompts wait and permits are free" if group is None else f"group {group.gid} needs another producer{lapses(group)}"
    if free:
        return weights(case, needed, free, stage, group)
    if not members:
        return nobody(case, stage, f"a pull of stage {stage!r}", why, gid)
    if marked := [member for member in members if member.duty is not None]:
        return on_duty(marked, gid)
    if all(scene.duties.holds_back(member) for member in members):
        return weights(case, needed, members, stage, group)
    if never := [member for member in members if member.loaded.get(topic.spec.model, -1) < needed]:
        return weights(case, needed, never, stage, group)
    return owes_take(case, stage, why, group)
