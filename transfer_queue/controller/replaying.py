"""What a take and a commit of a terminal consumer are to groups that it trained before: they come on top of its batch, and are counted apart."""

from __future__ import annotations

from collections.abc import Iterable

from transfer_queue.controller.kept import reply_of
from transfer_queue.controller.leases import Lease
from transfer_queue.controller.terminal import Terminal
from transfer_queue.controller.topic import TopicState
from transfer_queue.messages import Replayed


def replayed_with(topic: TopicState, terminal: Terminal, lease: Lease, size: int) -> Replayed:
    """What comes with a new lease. Batches are often taken in parts: of what is replayed with one of `size` groups, each brings its share; to ranks,
    equal ones."""
    replays = topic.replays.get(terminal.number)
    if replays is None:
        return Replayed()
    most = min(replays.spec.groups, len(replays))
    rounds = topic.rounds.get(terminal.number)
    if rounds is None:
        due = most * len(terminal.batch) // size - replays.leased
    else:
        mine, share = rounds.handed_with(lease), most // rounds.ranks
        groups = sum(each.groups_left() for each in mine)
        due = min(share, share * rounds.ranks * groups // size) - replays.leased_with(each.id for each in mine)
    return reply_of(replays.draw(lease.id, due), topic.schema.consumers[lease.consumer].inputs)


def count_replayed(topic: TopicState, terminal: Terminal, leases: list[int], clock: int, owner: str) -> dict[str, int]:
    """A batch was committed with these leases; `clock`: what it was trained from. For the record of the commit."""
    replays = topic.replays.get(terminal.number)
    if replays is None:
        return {}
    consumer = topic.schema.consumers[terminal.number].name
    replayed = replays.commit(leases)
    for group in replayed:
        data: dict[str, float | int | str] = {"consumer": consumer, "times": group.times, "clock": clock}
        topic.runtime.emit("replayed", topic=topic.name, gid=group.gid, version=group.version, member=owner, data=data)
    return {"replayed": len(replayed)}


def give_up(topic: TopicState, gids: Iterable[int], owner: str, reason: str) -> set[int]:
    """Those of the gids that this member has on top of a batch are never replayed again, and not counted. Returns which they are."""
    given_up = set()
    for replays in topic.replays.values():
        for gid in gids:
            lease = topic.leases.get(replays.lease_of(gid))
            if lease is not None and lease.owner == owner:
                replays.drop(gid)
                given_up.add(gid)
    for gid in sorted(given_up):
        topic.runtime.emit("topic", topic=topic.name, gid=gid, reason="replay_dropped", member=owner, data={"why": reason})
    return given_up
