"""Bytes of a read that come through the socket: in pieces, several under way, so that the socket never waits for us.

A frame of many megabytes would be received into fresh pages, which costs as much as the socket does. Pieces are received into memory that was used
before, and so is the buffer into which they are put together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from transfer_queue.gather import Gather
from transfer_queue.memory.buffers import Buffers
from transfer_queue.peer import Peer
from transfer_queue.pending import Pending
from transfer_queue.shard import messages as sm

PIECE_BYTES = 4 << 20
UNDER_WAY = 8  # requests without an answer: their frames wait in memory that nobody has counted


class Piece(msgspec.Struct, frozen=True):
    column: int
    ranges: sm.Ranges
    start: int  # in the bytes of this column
    nbytes: int


class Received:
    def __init__(self, peer: Peer, gathers: Sequence[Gather], buffers: Buffers) -> None:
        self._peer, self._gathers, self._buffers = peer, gathers, buffers
        columns = [list(pieces_of(column, gather.ranges(peer.index))) for column, gather in enumerate(gathers)]
        self._counts = [len(pieces) for pieces in columns]
        self._nbytes = [sum(piece.nbytes for piece in pieces) for pieces in columns]
        self._bytes: list[np.ndarray | None] = [None] * len(gathers)
        self._to_ask = deque(messages_of(piece for pieces in columns for piece in pieces))
        self._asked: deque[tuple[list[Piece], Pending[Any]]] = deque()
        self._ask()

    def take(self, timeout_s: float) -> set[int]:
        gone: set[int] = set()
        while self._asked:
            pieces, pending = self._asked.popleft()
            reply, frames = pending.result(timeout_s)
            if isinstance(reply, sm.NotFound):
                gone.update(*(gather.owners(self._peer.index, reply.gone) for gather in self._gathers))
                self._to_ask.clear()  # the rest is of no use any more
                continue
            for piece, frame in zip(pieces, frames, strict=True):
                self._place(piece, np.frombuffer(frame, dtype=np.uint8))
            self._ask()
        if not gone:
            for gather, found in zip(self._gathers, self._bytes, strict=True):
                gather.add(self._peer.index, np.empty(0, dtype=np.uint8) if found is None else found)
        return gone

    def abandon(self) -> None:
        """Replies that still come are dropped: they grant nothing."""
        self._to_ask.clear()

    def _ask(self) -> None:
        while self._to_ask and len(self._asked) < UNDER_WAY:
            pieces = self._to_ask.popleft()
            self._asked.append((pieces, self._peer.ask(sm.Read(columns=[piece.ranges for piece in pieces]))))

    def _place(self, piece: Piece, frame: np.ndarray) -> None:
        if len(frame) != piece.nbytes:
            shard, column = self._peer.index, self._gathers[piece.column].name
            raise ValueError(f"shard {shard} sent {len(frame)} bytes of column {column!r}, {piece.nbytes} were asked for")
        if self._counts[piece.column] == 1:
            self._bytes[piece.column] = frame
            return
        target = self._bytes[piece.column]
        if target is None:
            target = self._bytes[piece.column] = self._buffers.take(self._nbytes[piece.column])
        target[piece.start : piece.start + piece.nbytes] = frame


def pieces_of(column: int, ranges: sm.Ranges) -> Iterator[Piece]:
    """The bytes of `ranges`, in order, cut into pieces of at most PIECE_BYTES."""
    begin = nbytes = 0
    part = sm.Ranges([], [], [])
    for block, start, stop in zip(ranges.blocks, ranges.starts, ranges.stops, strict=True):
        while start < stop:
            end = min(stop, start + PIECE_BYTES - nbytes)
            part.blocks.append(block)
            part.starts.append(start)
            part.stops.append(end)
            nbytes += end - start
            start = end
            if nbytes == PIECE_BYTES:
                yield Piece(column, part, begin, nbytes)
                begin, nbytes, part = begin + nbytes, 0, sm.Ranges([], [], [])
    if nbytes:
        yield Piece(column, part, begin, nbytes)


def messages_of(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Pieces of several columns in one message, as long as it stays small."""
    together: list[Piece] = []
    for piece in pieces:
        if together and sum(other.nbytes for other in together) + piece.nbytes > PIECE_BYTES:
            yield together
            together = []
        together.append(piece)
    if together:
        yield together
