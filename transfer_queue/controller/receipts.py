"""What was answered to a member's last puts of whole groups, so that a repeat of one stores nothing again."""

from __future__ import annotations

from collections import OrderedDict

from transfer_queue.messages import OkStored

Kept = dict[str, list[tuple[int, OkStored]]]  # by owner, tokens with their replies from the oldest on

KEPT = 64  # replies of an owner that a repeat of its request gets again: more than it has under way
KEPT_BYTES = 1 << 20  # of their gids; the last one is kept however long it is


class Receipts:
    """They go with the incarnation."""

    def __init__(self) -> None:
        self._replies: dict[str, OrderedDict[int, OkStored]] = {}  # owner → token → reply
        self._bytes: dict[str, int] = {}  # by owner

    def find(self, owner: str, token: int) -> OkStored | None:
        mine = self._replies.get(owner)
        return None if mine is None else mine.get(token)

    def keep(self, owner: str, token: int, reply: OkStored) -> None:
        mine = self._replies.setdefault(owner, OrderedDict())
        mine[token] = reply
        self._bytes[owner] = self._bytes.get(owner, 0) + len(reply.gids)
        while len(mine) > KEPT or (len(mine) > 1 and self._bytes[owner] > KEPT_BYTES):
            self._bytes[owner] -= len(mine.popitem(last=False)[1].gids)

    def freeze(self) -> Kept:
        return {owner: list(mine.items()) for owner, mine in self._replies.items()}

    def thaw(self, frozen: Kept) -> None:
        for owner, mine in frozen.items():
            self._replies[owner] = OrderedDict(mine)
            self._bytes[owner] = sum(len(reply.gids) for _, reply in mine)

    def forget(self, owner: str) -> None:
        self._replies.pop(owner, None)
        self._bytes.pop(owner, None)
