"""Requests that come twice, because the connection broke before their replies came: each is carried out once, and answered the same again.

A member that repeats gives its requests ids from FIRST on: a random number of the connection above the low 32 bits, which count. So an id is unique
within the incarnation, on whichever connection it comes, and a reply is kept until the member has said that it came (`Request.back`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from transfer_queue.messages import AnyReply, Record, Reply, Request

BITS = 32
FIRST = 1 << BITS
MOST = 1 << 14  # connections of members that repeat
KEPT = 1000  # replies of a connection: a client waits for no more, so that those which have not come are among the last ones


class FrozenLine(Record, frozen=True):
    """What a snapshot keeps."""

    number: int
    owner: str
    heard: int
    waiting: dict[int, bytes]
    replies: list[AnyReply]


@dataclass(slots=True, eq=False)
class Line:
    """One connection of a member, however often it broke."""

    owner: str  # "name#incarnation"
    heard: int = 0  # the replies to all requests below this id have come
    waiting: dict[int, bytes] = field(default_factory=dict)  # parked requests → the connection that waits for the reply
    replies: dict[int, Reply] = field(default_factory=dict)  # by request, those that were answered last at the end

    def confirm(self, heard: int) -> None:
        self.heard = max(self.heard, heard)
        while self.replies and (first := next(iter(self.replies))) < self.heard:
            del self.replies[first]

    def answered(self, reply: Reply) -> None:
        self.waiting.pop(reply.id, None)
        self.replies[reply.id] = reply
        if len(self.replies) > KEPT:
            del self.replies[next(iter(self.replies))]


class Repeats:
    """They go with the incarnation."""

    def __init__(self) -> None:
        self._lines: dict[int, Line] = {}

    def line(self, owner: str, request: Request) -> Line | None:
        """Whose request this is; None where repeats of it cannot be told. Takes in what it confirms."""
        if request.id < FIRST:
            return None
        line = self._lines.get(request.id >> BITS)
        if line is None and len(self._lines) < MOST:
            line = self._lines[request.id >> BITS] = Line(owner)
        if line is None or line.owner != owner:
            return None
        line.confirm(request.id - max(request.back, 0))
        return line

    def parked_line(self, number: int) -> Line | None:
        """Of a parked request."""
        line = self._lines.get(number >> BITS)
        return line if line is not None and number in line.waiting else None

    def undo(self, number: int) -> bool:
        """This request counts as never seen: its repeat is to be carried out. False where no repeat is to be expected."""
        line = self._lines.get(number >> BITS)
        if line is None:
            return False
        line.waiting.pop(number, None)
        line.replies.pop(number, None)
        return True

    def forget(self, owner: str) -> None:
        self._lines = {number: line for number, line in self._lines.items() if line.owner != owner}

    def freeze(self) -> list[FrozenLine]:
        return [
            FrozenLine(number, line.owner, line.heard, line.waiting, cast(list[AnyReply], list(line.replies.values())))
            for number, line in self._lines.items()
        ]

    def thaw(self, frozen: list[FrozenLine]) -> None:
        for old in frozen:
            replies: dict[int, Reply] = {reply.id: reply for reply in old.replies}
            self._lines[old.number] = Line(old.owner, old.heard, old.waiting, replies)
