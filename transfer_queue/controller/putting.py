"""Whole groups in one request: numbers for them, admission, their rows and the close. For producers that need no prompts handed out to them."""

from __future__ import annotations

import numpy as np

from transfer_queue.controller.errors import RequestError, bad
from transfer_queue.controller.producing import MOST_TOKENS
from transfer_queue.controller.schema import MOST_ROWS
from transfer_queue.controller.store import MOST_GIDS
from transfer_queue.controller.topic import TopicState
from transfer_queue.controller.whole import store_whole
from transfer_queue.messages import OkStored, Put, packed, places, unpacked, wrong_lengths

MOST_PUT = 1 << 20  # rows


def put(topic: TopicState, request: Put, owner: str, last: bool) -> OkStored | None:
    """All groups or none: it parks until the window and the byte budget have room for them all. An empty reply stored nothing."""
    known = topic.receipts.find(owner, request.token)
    if known is not None:
        for buffer in request.columns.values():
            topic.runtime.blocks.refuse(places(buffer))
        return known
    columns = _check_columns(topic, request)
    gids = _check_gids(topic, request)
    if topic.over:
        return OkStored(done=True)
    if not _fits(topic, request.groups):
        return OkStored() if last else None
    version = _check_version(topic, request)
    if gids is None:
        gids = topic.prompts.number(request.groups)
    else:
        topic.prompts.see(gids)
    tokens = unpacked(request.tokens) if request.tokens else None
    store_whole(topic, gids, request.rows_per_group, columns, tokens, version, owner)
    topic.given += request.groups
    topic.progressed(topic.schema.generator)
    reply = OkStored(gids=packed(gids))
    topic.receipts.keep(owner, request.token, reply)
    return reply


def _check_columns(topic: TopicState, request: Put) -> dict[str, np.ndarray]:
    """Places, [R, 4] a column and [G, 4] a shared one."""
    schema, each, nothing = topic.schema, request.rows_per_group, "nothing was stored"
    if not 1 <= each <= MOST_ROWS or not 1 <= request.groups <= MOST_PUT // each:
        bounds = f"a group has 1 to {MOST_ROWS} rows, and a put 1 to {MOST_PUT}"
        raise bad(f"groups={request.groups} of rows_per_group={each}: {bounds}; {nothing}. Put fewer groups at once")
    shared = {name: buffer for name, buffer in request.columns.items() if name in schema.shared}
    own = {name: buffer for name, buffer in request.columns.items() if name not in schema.shared}
    tokens = {"tokens": request.tokens} if request.tokens else {}
    wrong = wrong_lengths(request.groups * each, tokens, own) or wrong_lengths(request.groups, {}, shared)
    if wrong:
        raise bad(f"{wrong}; {nothing}")
    if (tokens and not ((counts := unpacked(request.tokens)) >= 0).all()) or (tokens and (counts > MOST_TOKENS).any()):
        raise bad(f"tokens of a row lie outside [0, {MOST_TOKENS}]: {nothing}; count the tokens of each row")
    columns = {name: places(buffer) for name, buffer in request.columns.items()}
    schema.check_put(columns)
    topic.runtime.blocks.check(columns.values())
    return columns


def _check_gids(topic: TopicState, request: Put) -> np.ndarray | None:
    if not request.gids:
        return None
    if wrong := wrong_lengths(request.groups, {"gids": request.gids}, {}):
        raise bad(f"{wrong}; nothing was stored")
    gids = unpacked(request.gids)
    if (gids < 0).any() or (gids >= MOST_GIDS).any() or len(np.unique(gids)) < len(gids):
        raise bad(f"gids {gids[:8].tolist()}…: they count from 0 to 2^47 and name one group each; nothing was stored")
    if seen := [gid for gid in gids.tolist() if topic.prompts.was_put(gid)][:8]:
        raise bad(f"gids {seen} were put before: a group is put once; nothing was stored. Leave gids out, or count on")
    return gids


def _fits(topic: TopicState, groups: int) -> bool:
    """Now. Refused when it never will."""
    window, target = topic.window, topic.prompts.target
    if not window.has_permit(0, groups):
        spec = window.spec
        raise bad(
            f"{groups} groups in one put exceed the window of topic {topic.name!r} (capacity {window.capacity}, budget_bytes={window.budget_bytes}, "
            f"group_bytes={spec.group_bytes}): they could never be admitted together; nothing was stored. Put fewer at once, or widen the window"
        )
    opened = topic.ledger.open
    return window.has_permit(opened, groups) and (target is None or topic.ledger.trained + opened + groups <= target)


def _check_version(topic: TopicState, request: Put) -> int:
    """Of all tokens: the staleness bound is held by refusing what would be too old when its turn comes."""
    version = topic.version if request.version is None else request.version
    least = topic.window.min_version(topic.version, topic.ledger.open + request.groups - 1)
    if not least <= version <= topic.version:
        raise RequestError(
            "stale" if 0 <= version < least else "bad_request",  # the clock went on while the rows were made, or waited for room
            f"version={version} of a put is outside [{least}, {topic.version}] (what the staleness window lets in behind {topic.ledger.open} open "
            "groups, the committed clock): the bound would not hold; nothing was stored. Make the rows with newer weights"
        )
    return version
