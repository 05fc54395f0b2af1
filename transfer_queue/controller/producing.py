"""What producers ask: pull (admission), report progress, put rows and close groups, drop a group for good."""

from __future__ import annotations

from collections import defaultdict

from transfer_queue.controller.errors import bad
from transfer_queue.controller.group import Group, Row
from transfer_queue.controller.topic import TopicState
from transfer_queue.messages import (
    DropGroups,
    GroupLease,
    OkEmpty,
    OkProgress,
    OkPulled,
    OkPut,
    Progress,
    ProgressItem,
    Pull,
    PutRows,
    RowPut,
)

MOST_TOKENS = 1 << 40  # of a group: more is no count, and sums of it would not fit into a message


def pull(topic: TopicState, request: Pull, owner: str, loaded: int, last: bool) -> OkPulled | None:
    """Admission is this hand-out: reissued groups first, oldest version first, then waiting prompts."""
    if topic.over:
        return OkPulled(groups=[], done=True)
    groups: list[GroupLease] = []
    while len(groups) < request.limit and (group := _next(topic, owner, loaded)) is not None:
        groups.append(
            GroupLease(gid=group.gid, fence=group.fence, min_version=group.min_version, rows=group.missing_rows(), columns=group.prompt.columns)
        )
    if not groups and not last:
        return None
    return OkPulled(groups=groups, need_version=None if groups else need_version(topic, loaded))


def check_pull(request: Pull) -> None:
    """Apart from `pull`, for it comes before anything that the request tells is taken in."""
    if request.limit < 1:
        raise bad(f"limit={request.limit} of a Pull must be >= 1: nothing was handed out; pull when there is a free slot")


def _next(topic: TopicState, owner: str, loaded: int) -> Group | None:
    """One group that weights of version `loaded` may start, handed out."""
    lost = topic.reissues.head()
    if lost is not None:
        needed = topic.window.restart_version(topic.version, topic.ledger.open, lost.min_version)
        if loaded >= needed:
            topic.reissues.pop()
            lost.min_version = needed
            topic.reversion(lost)
            topic.hand_out(lost, owner, loaded)
            return lost
    if _admits(topic) and loaded >= topic.window.min_version(topic.version, topic.ledger.open):
        return topic.admit(owner, loaded)
    return None


def _admits(topic: TopicState) -> bool:
    opened = topic.ledger.open
    return topic.prompts.admits(topic.ledger.trained, opened) and topic.window.has_permit(opened)


def admission_bound(topic: TopicState) -> str:
    """What alone keeps the next prompt from being handed out to whom has the weights: done | prompts | count | window | bytes, "" for nothing."""
    opened = topic.ledger.open
    if topic.over:
        return "done"
    if not topic.prompts.admits(topic.ledger.trained, opened):
        return "count" if len(topic.prompts) else "prompts"
    if topic.window.capacity is not None and opened >= topic.window.capacity:
        return "window"
    return "" if topic.window.has_permit(opened) else "bytes"


def need_version(topic: TopicState, loaded: int) -> int | None:
    """The version whose absence alone keeps the next group from being handed out."""
    needed = []
    if (lost := topic.reissues.head()) is not None:
        needed.append(topic.window.restart_version(topic.version, topic.ledger.open, lost.min_version))
    if _admits(topic):
        needed.append(topic.window.min_version(topic.version, topic.ledger.open))
    return min(needed) if needed and min(needed) > loaded else None


def progress(topic: TopicState, request: Progress, owner: str) -> OkProgress:
    """A lease is renewed by tokens, never by the message: a hung engine loses it. A request that breaks a rule changes nothing at all."""
    closed: list[int] = []
    held: list[tuple[Group, ProgressItem]] = []
    for item in request.items:
        group = topic.groups.get(item.gid)
        if group is None or group.holder != owner or group.fence != item.fence:
            closed.append(item.gid)
            continue
        _check_tokens(item.gid, item.tokens)
        if item.oldest_version is not None:
            _check_version(topic, group, item.oldest_version)
        held.append((group, item))
    for group, item in held:
        _advance(topic, group, item)
    return OkProgress(closed=closed)


def _check_tokens(gid: int, tokens: int) -> None:
    if not 0 <= tokens <= MOST_TOKENS:
        raise bad(f"tokens={tokens} of group {gid} is outside [0, {MOST_TOKENS}]: nothing was taken in; count the tokens generated so far")


def _advance(topic: TopicState, group: Group, item: ProgressItem) -> None:
    if item.tokens > group.attempt_tokens:
        group.attempt_tokens = item.tokens
        topic.renew(group)
    if item.tokens == 0:
        group.held_version = max(group.held_version, item.oldest_version or 0)
        return
    if group.attempt_oldest != item.oldest_version:
        group.attempt_oldest = item.oldest_version
        topic.reversion(group)
    topic.start(group)


def _check_version(topic: TopicState, group: Group, oldest: int) -> None:
    if not group.min_version <= oldest <= topic.version:
        raise bad(
            f"oldest_version={oldest} of group {group.gid} is outside [{group.min_version}, {topic.version}] (its min_version, the committed "
            "clock): the staleness bound would not hold; generate it with the weights that the lease asks for"
        )


def put_rows(topic: TopicState, request: PutRows, owner: str) -> OkPut:
    """Atomic per group; a request that breaks a rule changes nothing at all."""
    by_gid: dict[int, list[RowPut]] = defaultdict(list)
    for row in request.rows:
        topic.schema.check_row(row.gid, row.row, row.columns)
        by_gid[row.gid].append(row)
    accepted: list[Group] = []
    closed: list[int] = []
    for gid in dict.fromkeys((*by_gid, *request.close)):
        group = _writable(topic, gid, by_gid[gid], owner)
        if group is None:
            closed.append(gid)
            continue
        _check_put(topic, group, by_gid[gid], request.close.get(gid))
        accepted.append(group)
    for group in accepted:
        _store(topic, group, by_gid[group.gid], group.gid in request.close)
    for gid in closed:
        topic.count_late(gid, owner, "rows")
        topic.runtime.blocks.refuse(piece for row in by_gid[gid] for piece in row.columns.values())
    return OkPut(closed=closed)


def _writable(topic: TopicState, gid: int, rows: list[RowPut], owner: str) -> Group | None:
    group = topic.groups.get(gid)
    if group is None or group.holder != owner:
        return None
    indices = {row.row for row in rows}
    if len(indices) < len(rows) or not indices.isdisjoint(group.rows) or any(row.fence != group.fence for row in rows):
        return None
    return group


def _check_put(topic: TopicState, group: Group, rows: list[RowPut], count: int | None) -> None:
    for row in rows:
        _check_tokens(group.gid, row.tokens)
        _check_version(topic, group, row.oldest_version)
        if not row.oldest_version <= row.newest_version <= topic.version:
            raise bad(
                f"newest_version={row.newest_version} of row {row.row} of group {group.gid} is outside [{row.oldest_version}, "
                f"{topic.version}] (its oldest token's, the committed clock): nothing was stored; report the version of each token as sampled"
            )
    have = len(group.rows) + len(rows)
    if count is not None and (count != have or count < 1):
        raise bad(
            f"close of group {group.gid} with count={count}, but {have} rows were put: a closed group has exactly its rows, and at least 1; "
            "nothing was stored. Put the missing rows in the same message, or use DropGroups"
        )


def _store(topic: TopicState, group: Group, rows: list[RowPut], close: bool) -> None:
    if rows:
        topic.start(group)
        topic.renew(group)
    for row in rows:
        topic.add_row(group, row)
    if close:
        topic.close(group)
    else:
        topic.reversion(group)


def drop_groups(topic: TopicState, request: DropGroups, owner: str) -> OkEmpty:
    """Only what the member holds, as producer or under a lease; anything else came too late and is counted. Too late is also what a trainer has in
    its batch: it may have learned from the group, and its batch would be short. The stage that wanted the drop is through with such a group."""
    if not request.reason or request.reason in ("stale", "run_end"):
        raise bad(f"reason={request.reason!r} of a drop is empty or one of the controller's own: the ledger could not be read; say why in a word")
    leased: dict[int, list[tuple[int, Group, Row | None]]] = defaultdict(list)  # by gid: (consumer, group, row)
    for lease in topic.leases.answerable(owner):
        for held, row in lease.items:
            leased[held.gid].append((lease.consumer, held, row))
    for gid in dict.fromkeys(request.gids):
        group = topic.groups.get(gid)
        mine = [(consumer, row) for consumer, held, row in leased.get(gid, ()) if held is group and not held.served(consumer, row)]
        if group is None or group.acked_by or (group.holder != owner and not mine):
            topic.count_late(gid, owner, "drop")
        elif group.leased_by - {consumer for consumer, _ in mine}:
            topic.count_late(gid, owner, "drop")
            for consumer, row in mine:
                if consumer not in topic.terminals:
                    topic.serve(consumer, group, row)
        else:
            topic.drop(group, request.reason)
    return OkEmpty()
