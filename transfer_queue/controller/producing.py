"""What producers ask: pull (admission), report progress, put rows and close groups, drop a group for good."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from transfer_queue.controller.errors import bad
from transfer_queue.controller.group import Group
from transfer_queue.controller.schema import Place
from transfer_queue.controller.topic import TopicState, Weights
from transfer_queue.messages import (
    GroupLease,
    OkProgress,
    OkPulled,
    OkPut,
    Progress,
    ProgressItem,
    Pull,
    PutBatch,
    PutRows,
    places,
    wrong_lengths,
)

PLACE = struct.Struct("<4q")
NO_WEIGHTS: Weights = (-1, -1)
MOST_EPOCHS = 1 << 40
MOST_TOKENS = 1 << 40  # of a group: more is no count, and sums of it would not fit into a message


def pull(topic: TopicState, request: Pull, owner: str, loaded: Weights, last: bool) -> OkPulled | None:
    """Admission is this hand-out: reissued groups first, oldest version first, then waiting prompts."""
    if not topic.clock_terminal.made(*loaded):
        loaded = NO_WEIGHTS  # of a history that was rolled back: newer ones are on their way to it
    if topic.over:
        return OkPulled(groups=[], done=True)
    groups: list[GroupLease] = []
    while len(groups) < request.limit and (group := _next(topic, owner, loaded)) is not None:
        groups.append(
            GroupLease(
                gid=group.gid,
                fence=group.fence,
                min_version=group.asked_version,
                rows=group.missing_rows(),
                columns=group.prompt.columns,
                left=group.left,
                epoch=topic.asked_weights(group, group.asked_version)[0],
            )
        )
    if not groups and not last:
        return None
    return OkPulled(groups=groups, need_version=None if groups else need_version(topic, loaded))


def check_pull(request: Pull) -> None:
    """Apart from `pull`, for it comes before anything that the request tells is taken in."""
    if request.limit < 1:
        raise bad(f"limit={request.limit} of a Pull must be >= 1: nothing was handed out; pull when there is a free slot")
    if request.epoch is not None:
        check_epoch(request.epoch, "a Pull: nothing was handed out")


def check_epoch(epoch: int, where: str) -> None:
    if not 0 <= epoch <= MOST_EPOCHS:
        raise bad(f"epoch={epoch} is outside [0, {MOST_EPOCHS}] in {where}; tell that of the weights")


def _next(topic: TopicState, owner: str, loaded: Weights) -> Group | None:
    """One group that weights of the version `loaded` may start, handed out."""
    lost = topic.reissues.head()
    if lost is not None:
        needed = topic.restart_version(lost)
        if loaded >= topic.asked_weights(lost, needed):
            topic.reissues.pop()
            if lost.left is None:  # else it has tokens that are older
                lost.min_version = needed
                topic.reversion(lost)
            topic.hand_out(lost, owner, loaded[1])
            return lost
    if _admits(topic) and loaded >= _admission_weights(topic):
        return topic.admit(owner, loaded[1])
    return None


def _admission_weights(topic: TopicState) -> Weights:
    """Of the next prompt."""
    version = topic.window.min_version(topic.version, topic.ledger.open)
    return (topic.clock_terminal.epoch_of(version), version)


def _admits(topic: TopicState) -> bool:
    opened = topic.ledger.open
    return topic.prompts.admits(topic.ledger.trained, opened) and topic.window.has_permit(opened)


def admission_bound(topic: TopicState) -> str:
    """What alone keeps the next prompt from being handed out to whom has the weights: done | prompts | count | window | bytes, "" for nothing."""
    opened = topic.ledger.open
    if topic.over:
        return "done"
    if not topic.prompts.admits(topic.ledger.trained, opened):
        return "count" if topic.prompts.has_next else "prompts"
    if topic.window.capacity is not None and opened >= topic.window.capacity:
        return "window"
    return "" if topic.window.has_permit(opened) else "bytes"


def need_version(topic: TopicState, loaded: Weights) -> int | None:
    """The version whose absence alone keeps the next group from being handed out."""
    needed = []
    if (lost := topic.reissues.head()) is not None:
        needed.append(topic.asked_weights(lost, topic.restart_version(lost)))
    if _admits(topic):
        needed.append(_admission_weights(topic))
    return min(needed)[1] if needed and min(needed) > loaded else None


def progress(topic: TopicState, request: Progress, owner: str) -> OkProgress:
    """A lease is renewed by tokens, never by the message: a hung engine loses it. A request that breaks a rule changes nothing at all."""
    closed: list[int] = []
    held: list[tuple[Group, ProgressItem]] = []
    for item in request.items:
        group = topic.groups.get(item.gid)
        if group is None or group.holder != owner or group.fence != item.fence:
            closed.append(item.gid)
            continue
        check_tokens(item.gid, item.tokens)
        if item.oldest_version is not None:
            check_version(topic, group, item.oldest_version)
        held.append((group, item))
    for group, item in held:
        _advance(topic, group, item)
    return OkProgress(closed=closed)


def check_tokens(gid: int, tokens: int) -> None:
    if not 0 <= tokens <= MOST_TOKENS:
        raise bad(f"tokens={tokens} of group {gid} is outside [0, {MOST_TOKENS}]: nothing was taken in; count the tokens generated so far")


def _advance(topic: TopicState, group: Group, item: ProgressItem) -> None:
    if item.tokens > group.attempt_tokens:
        topic.groups.groups.attempt_tokens[group.slot] = item.tokens
        topic.renew(group)
    attempt = group.attempt
    if item.tokens == 0:
        if attempt is not None:
            attempt.held_version = max(attempt.held_version, item.oldest_version or 0)
        return
    if attempt is not None and attempt.oldest != item.oldest_version:
        attempt.oldest = item.oldest_version
        topic.reversion(group)
    topic.start(group)


def check_version(topic: TopicState, group: Group, oldest: int) -> None:
    if not group.min_version <= oldest <= topic.version:
        raise bad(
            f"oldest_version={oldest} of group {group.gid} is outside [{group.min_version}, {topic.version}] (its min_version, the committed "
            "clock): the staleness bound would not hold; generate it with the weights that the lease asks for"
        )


def put_rows(topic: TopicState, request: PutRows, owner: str) -> OkPut:
    """Atomic per group; a request that breaks a rule changes nothing at all. Rows come one by one or a few at a time, so they are read one by one:
    an operation on arrays costs what several rows do."""
    rows = _incoming(topic, request.rows)
    topic.runtime.blocks.check(places(buffer) for buffer in request.rows.columns.values())
    rows_of: dict[int, list[Incoming]] = {}
    for row in rows:
        rows_of.setdefault(row.gid, []).append(row)
    accepted: list[tuple[Group, list[Incoming]]] = []
    closed: list[int] = []
    for gid in dict.fromkeys((*rows_of, *request.close)):
        mine = rows_of.get(gid, [])
        group = _writable(topic, gid, mine, owner)
        if group is None:
            closed.append(gid)
            continue
        _check_put(topic, group, mine, request.close.get(gid))
        accepted.append((group, mine))
    for group, mine in accepted:
        _store(topic, group, mine, closes=group.gid in request.close)
    for gid in closed:
        topic.count_late(gid, owner, "rows")
        for row in rows_of.get(gid, ()):
            topic.runtime.blocks.refuse(np.array([*row.columns.values()], dtype=np.int64).reshape(-1, 4))
    return OkPut(closed=closed)


@dataclass(slots=True)
class Incoming:
    """A row of a `PutBatch`."""

    gid: int
    fence: int
    index: int
    tokens: int
    oldest: int
    newest: int
    columns: dict[str, Place]


def _incoming(topic: TopicState, batch: PutBatch) -> list[Incoming]:
    if wrong := wrong_lengths(len(batch), batch.fields(), batch.columns):
        raise bad(f"{wrong}; nothing was stored")
    if not len(batch):
        return []
    tables = {name: list(PLACE.iter_unpack(buffer)) for name, buffer in batch.columns.items()}
    each = struct.Struct(f"<{len(batch)}q").unpack
    gids, fences, indices, tokens, oldest, newest = map(each, (batch.gids, batch.fences, batch.rows, batch.tokens, batch.oldest, batch.newest))
    topic.schema.check_rows(gids, indices, tables)
    return [
        Incoming(gids[at], fences[at], indices[at], tokens[at], oldest[at], newest[at], {name: table[at] for name, table in tables.items()})
        for at in range(len(batch))
    ]


def _writable(topic: TopicState, gid: int, rows: list[Incoming], owner: str) -> Group | None:
    group = topic.groups.get(gid)
    if group is None or group.holder != owner:
        return None
    fence, indices = group.fence, {row.index for row in rows}
    if indices and max(indices) >= group.wanted:
        raise bad(f"row={max(indices)} of group {gid} is outside [0, {group.wanted}), what was asked for: nothing was stored; samples count from 0")
    if len(indices) < len(rows) or any(row.fence != fence for row in rows) or group.has_any(indices):
        return None
    return group


def _check_put(topic: TopicState, group: Group, rows: list[Incoming], count: int | None) -> None:
    for row in rows:
        check_tokens(group.gid, row.tokens)
        check_version(topic, group, row.oldest)
        if not row.oldest <= row.newest <= topic.version:
            raise bad(
                f"newest_version={row.newest} of row {row.index} of group {group.gid} is outside [{row.oldest}, "
                f"{topic.version}] (its oldest token's, the committed clock): nothing was stored; report the version of each token as sampled"
            )
    if count is None:
        return
    have = int(topic.groups.groups.rows[group.slot]) + len(rows)
    if count != have or count < 1:
        raise bad(
            f"close of group {group.gid} with count={count}, but {have} rows were put: a closed group has exactly its rows, and at least 1; "
            "nothing was stored. Put the missing rows in the same message, or use DropGroups"
        )


def _store(topic: TopicState, group: Group, rows: list[Incoming], closes: bool) -> None:
    if rows:
        topic.start(group)
        topic.renew(group)
    for row in rows:
        topic.add_row(group.slot, row.index, row.tokens, row.oldest, row.newest, row.columns)
    if closes:
        topic.close(group)
    else:
        topic.reversion(group)
