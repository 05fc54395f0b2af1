"""A producer ends its attempts and leaves what it has of unfinished rows: whoever pulls the groups next goes on from there."""

from __future__ import annotations

from transfer_queue.controller.blocks import places_of
from transfer_queue.controller.errors import bad
from transfer_queue.controller.group import Group
from transfer_queue.controller.producing import check_tokens, check_version
from transfer_queue.controller.topic import TopicState
from transfer_queue.messages import HandBack, HandedBack, OkHandedBack

REASON = "handed_back"


def hand_back(topic: TopicState, request: HandBack, owner: str) -> OkHandedBack:
    """Atomic per group; a request that breaks a rule changes nothing at all."""
    gids = [item.gid for item in request.groups]
    if len(set(gids)) < len(gids):
        raise bad(f"groups {gids[:8]} of a HandBack: one is named twice; nothing was taken in. Name each once, with all that is left of it")
    for item in request.groups:
        _check_place(item)
    topic.runtime.blocks.check([places_of(item.left for item in request.groups if item.left is not None)])
    held: list[tuple[Group, HandedBack]] = []
    late: list[HandedBack] = []
    for item in request.groups:
        group = topic.groups.get(item.gid)
        if group is None or group.holder != owner or group.fence != item.fence:
            late.append(item)
            continue
        _check(topic, group, item)
        held.append((group, item))
    for group, item in held:
        _take(topic, group, item)
    for item in late:
        topic.count_late(item.gid, owner, "hand_back")
    topic.runtime.blocks.refuse(places_of(item.left for item in late if item.left is not None))
    return OkHandedBack(closed=[item.gid for item in late])


def _check_place(item: HandedBack) -> None:
    piece = item.left
    if piece is None:
        return
    numbers = (piece.shard, piece.block, piece.start, piece.stop)
    if min(numbers) < 0 or max(numbers) >= 1 << 63 or piece.stop < piece.start:
        raise bad(f"what is left of group {item.gid} lies at {piece}, no place in a shard: nothing was taken in; send what `write` returned")


def _check(topic: TopicState, group: Group, item: HandedBack) -> None:
    check_tokens(group.gid, item.tokens)
    if item.left is None:
        return
    check_version(topic, group, item.oldest_version)
    if not item.oldest_version <= item.newest_version <= topic.version:
        raise bad(
            f"newest_version={item.newest_version} of what is left of group {group.gid} is outside [{item.oldest_version}, {topic.version}] (its "
            "oldest token's, the committed clock): nothing was taken in; report the version of each token as sampled"
        )


def _take(topic: TopicState, group: Group, item: HandedBack) -> None:
    if item.tokens > group.attempt_tokens:
        topic.progressed(topic.schema.generator)
    if item.left is not None:
        topic.keep_left(group, item.left, item.oldest_version, item.newest_version)
    topic.end_attempt(group, REASON)
