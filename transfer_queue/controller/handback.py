"""A producer ends its attempts and leaves what it has of unfinished rows: whoever pulls the groups next goes on from there."""

from __future__ import annotations

from transfer_queue.controller.blocks import places_of
from transfer_queue.controller.errors import bad
from transfer_queue.controller.group import Group
from transfer_queue.controller.producing import check_epoch, check_tokens, check_version
from transfer_queue.controller.topic import TopicState
from transfer_queue.messages import HandBack, HandedBack, OkHandedBack

REASON = "handed_back"
VOID = "rolled_back"  # what is handed back, and not kept


def hand_back(topic: TopicState, request: HandBack, owner: str, draining: bool) -> OkHandedBack:
    """Atomic per group; a request that breaks a rule changes nothing at all. `draining`: nothing is handed out any more, so that who has a group
    keeps it, to finish it."""
    gids = [item.gid for item in request.groups]
    if len(set(gids)) < len(gids):
        raise bad(f"groups {gids[:8]} of a HandBack: one is named twice; nothing was taken in. Name each once, with all that is left of it")
    for item in request.groups:
        _check_place(item)
    topic.runtime.blocks.check([places_of(item.left for item in request.groups if item.left is not None)])
    held: list[tuple[Group, HandedBack]] = []
    late: list[HandedBack] = []
    void: list[HandedBack] = []
    for item in request.groups:
        group = topic.groups.get(item.gid)
        if group is None or group.holder != owner or group.fence != item.fence:
            late.append(item)
            continue
        check_tokens(group.gid, item.tokens)
        for epoch in item.epochs:
            check_epoch(epoch, f"what is left of group {group.gid}: nothing was taken in")
        if item.left is not None and _rolled_back(topic, item):
            void.append(item)
        elif item.left is not None:
            _check_left(topic, group, item)
        held.append((group, item))
    for item in late:
        topic.count_late(item.gid, owner, "hand_back")
    closed = [item.gid for item in late]
    stay = [group.gid for group, item in held if item not in void] if draining else []
    for group, item in held:
        if group.gid not in stay:
            _take(topic, group, item, keep=item not in void)
    for item in void:
        _tell_void(topic, item, owner)
    untaken = request.groups if draining else late + void
    topic.runtime.blocks.refuse(places_of(item.left for item in untaken if item.left is not None))
    return OkHandedBack(closed, kept=stay)


def _check_place(item: HandedBack) -> None:
    piece = item.left
    if piece is None:
        return
    numbers = (piece.shard, piece.block, piece.start, piece.stop)
    if min(numbers) < 0 or max(numbers) >= 1 << 63 or piece.stop < piece.start:
        raise bad(f"what is left of group {item.gid} lies at {piece}, no place in a shard: nothing was taken in; send what `write` returned")


def _rolled_back(topic: TopicState, item: HandedBack) -> bool:
    """Whether some of its tokens were made by weights that a trainer had and that the history which leads to the clock has not: of an older trainer,
    or where two went on at once, of whichever the commits leave out. Its holder may be late, and is not to blame."""
    terminal = topic.clock_terminal
    present = terminal.epochs[-1] if terminal.epochs else 0

    def left_out(epoch: int, low: int, high: int) -> bool:
        possible = epoch < present or 0 <= low <= high <= terminal.clock
        return possible and not (terminal.made(epoch, low) and terminal.made(epoch, high))

    return any(left_out(epoch, low, high) for epoch, (low, high) in item.epochs.items())


def _check_left(topic: TopicState, group: Group, item: HandedBack) -> None:
    check_version(topic, group, item.oldest_version)
    if not item.oldest_version <= item.newest_version <= topic.version:
        raise bad(
            f"newest_version={item.newest_version} of what is left of group {group.gid} is outside [{item.oldest_version}, {topic.version}] (its "
            "oldest token's, the committed clock): nothing was taken in; report the version of each token as sampled"
        )
    if not item.epochs:
        return
    for epoch, (low, high) in item.epochs.items():
        if low > high or not (topic.clock_terminal.made(epoch, low) and topic.clock_terminal.made(epoch, high)):
            raise bad(
                f"versions {low} to {high} of epoch {epoch} in what is left of group {group.gid} were never committed in it: nothing was taken in; "
                "report epoch and version of each token as sampled"
            )
    oldest, newest = min(low for low, _ in item.epochs.values()), max(high for _, high in item.epochs.values())
    if (oldest, newest) != (item.oldest_version, item.newest_version):
        raise bad(
            f"oldest_version={item.oldest_version}, newest_version={item.newest_version} of what is left of group {group.gid}, but its epochs say "
            f"{oldest} and {newest}: nothing was taken in; tell both of the same tokens"
        )


def _take(topic: TopicState, group: Group, item: HandedBack, keep: bool) -> None:
    if item.tokens > group.attempt_tokens:
        topic.progressed(topic.schema.generator)
    if item.left is not None and keep:
        epoch = max(item.epochs, default=topic.clock_terminal.epoch_of(item.newest_version))
        topic.keep_left(group, item.left, item.oldest_version, item.newest_version, epoch)
    topic.end_attempt(group, REASON)


def _tell_void(topic: TopicState, item: HandedBack, owner: str) -> None:
    """For the record: so much was generated in vain."""
    data: dict[str, float | int | str] = {"tokens": item.tokens, "epoch": max(item.epochs)}
    topic.runtime.emit("topic", topic=topic.name, gid=item.gid, reason=VOID, version=item.newest_version, member=owner, data=data)
