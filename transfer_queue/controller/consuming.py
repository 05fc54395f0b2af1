"""What consumers ask: take rows or groups under a lease, write outputs back, give a lease up."""

from __future__ import annotations

import numpy as np

from transfer_queue.controller import leasing
from transfer_queue.controller.errors import bad
from transfer_queue.controller.leases import Lease
from transfer_queue.controller.ranks import check_rank, deal, deal_batch, take_part
from transfer_queue.controller.replaying import replayed_with
from transfer_queue.controller.schema import MOST_ROWS
from transfer_queue.controller.store import MOST_GIDS, gids_of, keys_of, rows_of
from transfer_queue.controller.terminal import Terminal
from transfer_queue.controller.topic import TopicState
from transfer_queue.messages import OkEmpty, OkTaken, OkWritten, Release, Renew, Take, WriteBack, places, unpacked, wrong_lengths


def take(topic: TopicState, request: Take, owner: str, loaded: int | None, last: bool, held_back: bool) -> OkTaken | None:
    """`held_back`: no batch may be handed to a terminal consumer yet. None: nothing to lease yet, and the request may wait."""
    number = topic.schema.consumer(request.consumer)
    if request.limit < 1 or request.at_least < 1:
        raise bad(f"limit={request.limit}, at_least={request.at_least} of a Take must be >= 1: nothing was leased; ask for what can be computed now")
    if topic.schema.consumers[number].needs_weights and loaded is None:
        raise bad(
            f"loaded=None: consumer {request.consumer!r} needs weights and gets only rows that its weights may serve; say which version is loaded"
        )
    rounds = topic.rounds.get(number)
    check_rank(request, 0 if rounds is None else rounds.ranks)
    terminal = topic.terminals.get(number)
    if topic.over:
        return OkTaken(version=topic.version if terminal is None else terminal.clock, done=True)
    if terminal is not None:
        return _take_batch(topic, terminal, request, owner, loaded, last, held_back)
    if rounds is not None:
        if not rounds.waits(request.rank or 0) and rounds.may_deal():
            deal(topic, rounds, request, loaded, last)
        reply = take_part(topic, rounds, request, owner, loaded)
        return OkTaken(version=topic.version) if reply is None and last else reply
    available = topic.queues.pickers[number].most(loaded)
    # at the deadline a consumer gets what there is: the last rows of a batch may be fewer than it hoped for, and the batch waits for them
    if not available or (available < min(request.at_least, request.limit) and not last):
        return OkTaken(version=topic.version) if last else None
    items = topic.queues.pop(number, request.limit, loaded, min(request.at_least, request.limit))
    lease = topic.leases.add(number, owner, topic.queues.rows_of(number, items))
    leasing.arm(topic, lease)
    return OkTaken(lease=lease.id, rows=leasing.rows_of_lease(topic, lease), version=topic.version)


def _take_batch(
    topic: TopicState, terminal: Terminal, request: Take, owner: str, loaded: int | None, last: bool, held_back: bool
) -> OkTaken | None:
    size = terminal.batch_size(topic.prompts.target)
    empty = OkTaken(version=terminal.clock, batch=size)
    if request.step is None or request.step > terminal.clock:
        raise bad(
            f"step={request.step} of terminal consumer {request.consumer!r}: its clock is {terminal.clock}, and a batch is trained from "
            "exactly that version; nothing was leased. Load the weights of the clock"
        )
    if request.step < terminal.clock:
        return empty  # a restarted trainer learns the clock from the reply
    left = 0 if held_back else size - len(terminal.batch)
    rounds = topic.rounds.get(terminal.number)
    if rounds is not None:
        if left > 0 and not rounds.waits(request.rank or 0) and rounds.may_deal():
            deal_batch(topic, terminal, rounds, request, owner, loaded, left)
        reply = None if held_back else take_part(topic, rounds, request, owner, loaded)
        return empty if reply is None and last else reply
    limit = min(request.limit, left)
    groups = topic.pop_batch(terminal, limit, min(request.at_least, limit), loaded) if left > 0 else np.zeros(0, dtype=np.int64)
    if not len(groups):
        return empty if last else None
    topic.lease_batch(groups, owner)
    lease = topic.leases.add(terminal.number, owner, topic.groups.rows_of(groups)[0])
    replayed = replayed_with(topic, terminal, lease, size)
    return OkTaken(lease=lease.id, rows=leasing.rows_of_lease(topic, lease), version=terminal.clock, batch=size, replayed=replayed)


def write_back(topic: TopicState, request: WriteBack, owner: str) -> OkWritten:
    """Outputs and acknowledgement in one. Groups that ended, or that have a row whose columns are there, come back in `closed`; rows not named are
    ready again. A lease that ran out may still be answered, by an owner that was slow and not hung: the first to write a row wins."""
    number = topic.schema.consumer(request.consumer)
    if number in topic.terminals:
        raise bad(f"consumer={request.consumer!r} is terminal: its acknowledgement is Commit; nothing was written")
    topic.schema.check_outputs(number, request.columns)
    if wrong := wrong_lengths(len(request.gids) // 8, {"gids": request.gids, "rows": request.rows}, request.columns):
        raise bad(f"{wrong}; nothing was written")
    columns = {name: places(buffer) for name, buffer in request.columns.items()}
    topic.schema.check_places(f"write-back of {request.consumer!r}", columns)
    topic.runtime.blocks.check(columns.values())
    lapsed = topic.leases.find_lapsed(request.lease, number, owner)
    lease = lapsed or topic.leases.find(request.lease, number, owner)
    if lease is None:
        return OkWritten(closed=_refuse(topic, request, columns, np.ones(len(request.gids) // 8, dtype=bool), owner))
    whole = (request.gids, request.rows) == lease.named
    at = np.arange(len(lease.keys)) if whole else _places_in(lease, request)
    _check_whole(topic, lease, request, at)
    _check_weights(topic, lease, request, at)
    due = lease.due()[at]
    if due.all():
        _apply(topic, lease, request, columns, at, owner)
    else:
        _apply(topic, lease, request, {name: table[due] for name, table in columns.items()}, at[due], owner)
    topic.leases.renew_after(lease, topic.runtime.now() + topic.lease_s)
    if lapsed is not None:
        topic.leases.end_lapsed(lapsed)
        _tell_slow(topic, lapsed, int(np.count_nonzero(due)))
    elif whole:
        leasing.end(topic, lease)
    else:
        _acknowledge(topic, lease, at)
    return OkWritten(closed=[] if due.all() else _refuse(topic, request, columns, ~due, owner))


def _tell_slow(topic: TopicState, lease: Lease, rows: int) -> None:
    """For the record: `lease_s` is too short for this work, and with several workers it is done several times."""
    data: dict[str, float | int | str] = {"consumer": topic.schema.consumers[lease.consumer].name, "rows": rows, "lease_s": topic.lease_s}
    data["seconds"] = topic.runtime.now() - lease.since
    topic.runtime.emit("topic", topic=topic.name, reason="written_late", member=lease.owner, data=data)


def _places_in(lease: Lease, request: WriteBack) -> np.ndarray:
    """[R] for each key its place in the lease."""
    gids, rows = unpacked(request.gids), unpacked(request.rows)
    sane = (gids >= 0) & (gids < MOST_GIDS) & (rows >= 0) & (rows < MOST_ROWS)  # others would be read as another key
    keys = np.where(sane, keys_of(gids, rows), -1)
    if np.array_equal(keys, lease.keys):
        return np.arange(len(keys))
    order = np.argsort(lease.keys)
    at = np.searchsorted(lease.keys, keys, sorter=order)
    known = at < len(order)
    known[known] = lease.keys[order[at[known]]] == keys[known]
    if not known.all() or len(np.unique(keys)) < len(keys):
        strange = list(zip(gids[~known].tolist(), rows[~known].tolist(), strict=True))
        raise bad(
            f"keys {sorted(strange)[:4]} of write-back {request.lease} are not in that lease, or a key comes twice: nothing was "
            "written; write back the rows that were leased"
        )
    return order[at]


def _check_whole(topic: TopicState, lease: Lease, request: WriteBack, at: np.ndarray) -> None:
    consumer = topic.schema.consumers[lease.consumer]
    if consumer.unit != "group" or len(at) == len(lease.keys):
        return
    named = np.isin(lease.groups, lease.groups[at])
    named[at] = False
    if named.any():
        keys = lease.keys[named][:4]
        partial = list(zip(gids_of(keys).tolist(), rows_of(keys).tolist(), strict=True))
        raise bad(
            f"rows {partial} of a group are missing in write-back {request.lease}: {consumer.name!r} works on whole groups; "
            "nothing was written. Write all rows of a group, or none"
        )


def _check_weights(topic: TopicState, lease: Lease, request: WriteBack, at: np.ndarray) -> None:
    if not topic.schema.consumers[lease.consumer].needs_weights:
        return
    newest = int(lease.newest[at].max(initial=0))
    made = request.weights
    if made is None or made.model != topic.spec.model or not newest <= made.version <= topic.version:
        raise bad(
            f"weights={made} of write-back {request.lease} by {request.consumer!r}: its columns must be made by weights of {topic.spec.model!r} "
            f"with a version in [{newest}, {topic.version}] (the newest token's, what is committed); nothing was written. Name the weights that "
            "made them"
        )


def _apply(topic: TopicState, lease: Lease, request: WriteBack, columns: dict[str, np.ndarray], at: np.ndarray, owner: str) -> None:
    """Write the rows at these places of the lease, with their `columns` (places), and serve them."""
    if len(at):
        topic.write(lease.rows[at], columns)
        topic.queues.serve(lease.consumer, lease.rows[at])
        topic.done_rows[lease.consumer] += len(at)
        topic.progressed(request.consumer)
    if request.weights is not None:
        topic.runtime.emit(
            "topic",
            topic=topic.name,
            reason="written",
            version=request.weights.version,
            member=owner,
            data={"consumer": request.consumer, "rows": len(at), "epoch": request.weights.epoch},
        )


def _acknowledge(topic: TopicState, lease: Lease, at: np.ndarray) -> None:
    """Rows named are done; items not named at all are ready again."""
    left = np.ones(len(lease.keys), dtype=bool)
    left[at] = False
    lease.keep(left)
    leasing.release(topic, lease, "not_written")


def _refuse(topic: TopicState, request: WriteBack, columns: dict[str, np.ndarray], refused: np.ndarray, owner: str) -> list[int]:
    """Free what came for these rows ([R] bool); returns their gids."""
    closed = list(dict.fromkeys(unpacked(request.gids)[refused].tolist()))
    for gid in closed:
        topic.count_late(gid, owner, f"write_back:{request.consumer}")
    for table in columns.values() if closed else ():
        topic.runtime.blocks.refuse(table[refused])
    return closed


def give_back(topic: TopicState, request: Release, owner: str) -> OkEmpty:
    lease = topic.leases.find(request.lease, topic.schema.consumer(request.consumer), owner)
    if lease is not None:
        leasing.release(topic, lease, "released")
        topic.leases.renew_after(lease, topic.runtime.now() + topic.lease_s)
    return OkEmpty()


def renew(topic: TopicState, request: Renew, owner: str) -> OkEmpty:
    """Nothing to renew (it ran out, or never ends by time): nothing is changed, and what is written late is taken in where it is the first."""
    number = topic.schema.consumer(request.consumer)
    if not 0.0 <= request.within_s <= leasing.MOST_HELD_S:
        rule = f"it must be within [0, {leasing.MOST_HELD_S:g}] s: longer than that nobody's rows wait for something else"
        raise bad(f"within_s={request.within_s} of a Renew: {rule}; the lease is as it was. Say by when it is over at the latest")
    lease = topic.leases.find(request.lease, number, owner)
    if lease is not None and lease.timer is not None:
        leasing.hold(topic, lease, request.within_s)
    return OkEmpty()
