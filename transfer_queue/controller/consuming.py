"""What consumers ask: take rows or groups under a lease, write outputs back, give a lease up."""

from __future__ import annotations

from collections.abc import Sequence

from transfer_queue.controller.errors import bad
from transfer_queue.controller.group import Group, Row
from transfer_queue.controller.leases import Lease
from transfer_queue.controller.readiness import Item
from transfer_queue.controller.terminal import Terminal
from transfer_queue.controller.topic import TopicState
from transfer_queue.messages import OkEmpty, OkTaken, OkWritten, Release, RowRef, Slice, Take, WriteBack


def take(topic: TopicState, request: Take, owner: str, loaded: int | None, last: bool, held_back: bool) -> OkTaken | None:
    """`held_back`: no batch may be handed to a terminal consumer yet. None: nothing to lease yet, and the request may wait."""
    number = topic.schema.consumer(request.consumer)
    if request.limit < 1 or request.at_least < 1:
        raise bad(f"limit={request.limit}, at_least={request.at_least} of a Take must be >= 1: nothing was leased; ask for what can be computed now")
    if topic.schema.consumers[number].needs_weights and loaded is None:
        raise bad(
            f"loaded=None: consumer {request.consumer!r} needs weights and gets only rows that its weights may serve; say which version is loaded"
        )
    terminal = topic.terminals.get(number)
    if topic.over:
        return OkTaken(version=topic.version if terminal is None else terminal.clock, done=True)
    if terminal is not None:
        return _take_batch(topic, terminal, request, owner, loaded, last, held_back)
    ready = topic.ready[number]
    available = ready.count(loaded)
    # at the deadline a consumer gets what there is: the last rows of a batch may be fewer than it hoped for, and the batch waits for them
    if not available or (available < min(request.at_least, request.limit) and not last):
        return OkTaken(version=topic.version) if last else None
    lease = topic.leases.add(number, owner, ready.pop(request.limit, loaded))
    _arm(topic, lease)
    return OkTaken(lease=lease.id, rows=_refs(topic, number, lease.items), version=topic.version)


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
    limit = min(request.limit, left)
    groups = terminal.select(limit, min(request.at_least, limit), loaded, topic.window.ordered) if left > 0 else []
    if not groups:
        return empty if last else None
    for group in groups:
        group.leased_by.add(terminal.number)
        if group.state != "leased":
            topic.ledger.move(group, "leased", topic.version, member=owner)
    if topic.spec.consumers[terminal.number].sampler == "in_order":
        groups.sort(key=lambda group: group.gid)
    lease = topic.leases.add(terminal.number, owner, [(group, None) for group in groups])
    return OkTaken(lease=lease.id, rows=_refs(topic, terminal.number, lease.items), version=terminal.clock, batch=size)


def _arm(topic: TopicState, lease: Lease) -> None:
    def expire() -> float | None:
        if topic.runtime.now() < lease.deadline:
            return lease.deadline
        topic.lapse(lease)
        return None

    lease.deadline = topic.runtime.now() + topic.lease_s
    lease.timer = topic.runtime.timers.at(lease.deadline, expire)


def _refs(topic: TopicState, number: int, items: list[Item]) -> list[RowRef]:
    """Rows of a group adjacent, in row order."""
    inputs = topic.schema.consumers[number].inputs
    refs = []
    for group, row in items:
        for part in [row] if row is not None else [group.rows[index] for index in sorted(group.rows)]:
            columns = [(group.prompt.columns if name in topic.schema.shared else part.columns).get(name) for name in inputs]
            refs.append(RowRef(group.gid, part.index, part.oldest, part.newest, columns))
    return refs


def write_back(topic: TopicState, request: WriteBack, owner: str) -> OkWritten:
    """Outputs and acknowledgement in one. Groups that ended, or that have a row whose columns are there, come back in `closed`; rows not named are
    ready again. A lease that ran out may still be answered, by an owner that was slow and not hung: the first to write a row wins."""
    number = topic.schema.consumer(request.consumer)
    if number in topic.terminals:
        raise bad(f"consumer={request.consumer!r} is terminal: its acknowledgement is Commit; nothing was written")
    topic.schema.check_outputs(number, request.columns)
    for name, slices in request.columns.items():
        if len(slices) != len(request.keys):
            raise bad(f"column {name!r} has {len(slices)} slices for {len(request.keys)} keys: values would land on other rows; nothing was written")
        topic.schema.check_slices(f"write-back of {request.consumer!r}", ((name, piece) for piece in slices))
    lapsed = topic.leases.find_lapsed(request.lease, number, owner)
    lease = lapsed or topic.leases.find(request.lease, number, owner)
    if lease is None:
        return OkWritten(closed=_refuse(topic, request, range(len(request.keys)), owner))
    rows = _leased_rows(lease)
    _check_keys(topic, request, rows)
    refused = _apply(topic, number, request, rows, owner)
    topic.leases.renew_after(lease, topic.runtime.now() + topic.lease_s)
    if lapsed is None:
        _acknowledge(topic, lease, set(request.keys))
    else:
        topic.leases.end_lapsed(lapsed)
        _tell_slow(topic, lapsed, len(request.keys) - len(refused))
    return OkWritten(closed=_refuse(topic, request, refused, owner))


def _tell_slow(topic: TopicState, lease: Lease, rows: int) -> None:
    """For the record: `lease_s` is too short for this work, and with several workers it is done several times."""
    data: dict[str, float | int | str] = {"consumer": topic.schema.consumers[lease.consumer].name, "rows": rows, "lease_s": topic.lease_s}
    data["seconds"] = topic.runtime.now() - lease.since
    topic.runtime.emit("topic", topic=topic.name, reason="written_late", member=lease.owner, data=data)


def _leased_rows(lease: Lease) -> dict[tuple[int, int], tuple[Group, Row]]:
    return {(group.gid, part.index): (group, part) for group, row in lease.items for part in ([row] if row is not None else group.rows.values())}


def _check_keys(topic: TopicState, request: WriteBack, rows: dict[tuple[int, int], tuple[Group, Row]]) -> None:
    keys = set(request.keys)
    if len(keys) < len(request.keys) or not keys <= rows.keys():
        raise bad(
            f"keys {sorted(keys - rows.keys())[:4]} of write-back {request.lease} are not in that lease, or a key comes twice: nothing was "
            "written; write back the rows that were leased"
        )
    consumer = topic.schema.consumers[topic.schema.consumer(request.consumer)]
    named = {gid for gid, _ in keys}
    if consumer.unit == "group" and (partial := {key for key in rows if key[0] in named} - keys):
        raise bad(
            f"rows {sorted(partial)[:4]} of a group are missing in write-back {request.lease}: {consumer.name!r} works on whole groups; "
            "nothing was written. Write all rows of a group, or none"
        )
    if not consumer.needs_weights:
        return
    newest = max((rows[key][1].newest for key in keys), default=0)
    made = request.weights
    if made is None or made.model != topic.spec.model or not newest <= made.version <= topic.version:
        raise bad(
            f"weights={made} of write-back {request.lease} by {request.consumer!r}: its columns must be made by weights of {topic.spec.model!r} "
            f"with a version in [{newest}, {topic.version}] (the newest token's, what is committed); nothing was written. Name the weights that "
            "made them"
        )


def _apply(topic: TopicState, number: int, request: WriteBack, rows: dict[tuple[int, int], tuple[Group, Row]], owner: str) -> list[int]:
    """Write row by row; returns the places in `request.keys` of those that were refused: their group ended, or somebody else has written them."""
    whole = topic.schema.consumers[number].unit == "group"
    refused, served = [], dict[tuple[int, int], tuple[Group, Row | None]]()
    for place, key in enumerate(request.keys):
        group, row = rows[key]
        if not group.open or group.served(number, row):
            refused.append(place)
            continue
        topic.write(group, row, {name: slices[place] for name, slices in request.columns.items()})
        served[(group.gid, -1) if whole else key] = (group, None if whole else row)
    for group, part in served.values():
        topic.serve(number, group, part)
    accepted = len(request.keys) - len(refused)
    topic.done_rows[number] += accepted
    if accepted:
        topic.progressed(request.consumer)
    if request.weights is not None:
        topic.runtime.emit(
            "topic",
            topic=topic.name,
            reason="written",
            version=request.weights.version,
            member=owner,
            data={"consumer": request.consumer, "rows": accepted, "epoch": request.weights.epoch},
        )
    return refused


def _acknowledge(topic: TopicState, lease: Lease, keys: set[tuple[int, int]]) -> None:
    """Rows named are done; items not named at all are ready again."""
    gids = {gid for gid, _ in keys}
    lease.items = [(group, row) for group, row in lease.items if ((group.gid, row.index) not in keys if row is not None else group.gid not in gids)]
    topic.release(lease, "not_written")


def _refuse(topic: TopicState, request: WriteBack, refused: Sequence[int], owner: str) -> list[int]:
    """Free what came for these places of `request.keys`; returns their gids."""
    closed = list(dict.fromkeys(request.keys[place][0] for place in refused))
    for gid in closed:
        topic.count_late(gid, owner, f"write_back:{request.consumer}")
    pieces: list[Slice] = [slices[place] for place in refused for slices in request.columns.values()]
    topic.runtime.blocks.refuse(pieces)
    return closed


def give_back(topic: TopicState, request: Release, owner: str) -> OkEmpty:
    lease = topic.leases.find(request.lease, topic.schema.consumer(request.consumer), owner)
    if lease is not None:
        topic.release(lease, "released")
        topic.leases.renew_after(lease, topic.runtime.now() + topic.lease_s)
    return OkEmpty()
