"""What a member asks to be given up: whole groups, whatever became of them meanwhile."""

from __future__ import annotations

import numpy as np

from transfer_queue.controller import ending
from transfer_queue.controller.errors import bad
from transfer_queue.controller.leases import Lease
from transfer_queue.controller.members import check_word
from transfer_queue.controller.replaying import give_up
from transfer_queue.controller.topic import TopicState
from transfer_queue.messages import DropGroups, OkEmpty

MOST_STATES = 128  # that a ledger counts, reasons of drops among them: every status and stall report carries them


def drop_groups(topic: TopicState, request: DropGroups, owner: str) -> OkEmpty:
    """Only what the member holds, as producer or under a lease; anything else came too late and is counted. Too late is also what a trainer has in
    its batch: it may have learned from the group, and its batch would be short. The stage that wanted the drop is through with such a group."""
    if not request.reason or request.reason in ("stale", "run_end"):
        raise bad(f"reason={request.reason!r} of a drop is empty or one of the controller's own: the ledger could not be read; say why in a word")
    check_word("reason", request.reason)
    counts = topic.ledger.counts
    if f"dropped:{request.reason}" not in counts and len(counts) >= MOST_STATES:
        raise bad(
            f"reason={request.reason!r} of a drop would be one more than the {MOST_STATES} states that the ledger of {topic.name!r} counts: nothing "
            "was dropped; use one of the reasons before, and report what tells one drop from another (`report`)"
        )
    wanted = dict.fromkeys(request.gids)
    replayed = give_up(topic, wanted, owner, request.reason)
    table, slots = topic.groups.groups, topic.groups.open_of(wanted)
    leases = topic.leases.answerable_of(owner, slots)
    held = _held(slots, leases, len(topic.schema.consumers))
    mine = held.any(axis=1)
    if topic.held.get(owner):
        mine |= np.isin(table.gid[slots], list(topic.held[owner]))
    mine &= ~table.acked[slots].any(axis=1)
    taken = mine & (table.leased[slots] & ~held).any(axis=1)  # by a trainer
    dropped = slots[mine & ~taken]
    if len(dropped) < len(wanted):
        for gid in wanted.keys() - set(table.gid[dropped].tolist()) - replayed:
            topic.count_late(gid, owner, "drop")
    if taken.any():
        _serve(topic, leases, slots[taken])
    ending.drop(topic, dropped, request.reason)
    return OkEmpty()


def _held(slots: np.ndarray, leases: list[Lease], consumers: int) -> np.ndarray:
    """[G, K] bool: of which groups one of the leases holds something, and for which consumer."""
    held = np.zeros((len(slots), consumers), dtype=np.bool_)
    for lease in leases:
        groups = lease.groups[lease.due()]
        held[:, lease.consumer] |= (groups == slots).any() if len(slots) == 1 else np.isin(slots, groups)
    return held


def _serve(topic: TopicState, leases: list[Lease], slots: np.ndarray) -> None:
    for lease in leases:
        rows = lease.rows[lease.due() & np.isin(lease.groups, slots)]
        if len(rows) and lease.consumer not in topic.terminals:
            topic.queues.serve(lease.consumer, rows)
