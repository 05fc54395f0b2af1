"""The root's side of a walk: whole tensors in order, the next ones on their way while one is read, in memory of a fixed size."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor

from checkpoint_engine.sharded.blocks import Block, blocks_of
from checkpoint_engine.sharded.entries import Entry
from checkpoint_engine.sharded.exchange import Exchange, Sending
from checkpoint_engine.sharded.ring import Ring, ring_bytes

MOST_FLIGHTS = 32  # tensors on their way at once, however small: descriptors of operations are memory too


@dataclass(frozen=True, slots=True)
class _Flight:
    name: str
    whole: torch.Tensor
    coming: Sending | None
    in_ring: bool


class Gather:
    """Iterates over (name, whole tensor), each lent until the next one is asked for: its memory is used again.

    Holds (`prefetch` + 1) times the largest tensor that has to be gathered or cast, the one that is being read included. A part that is no stretch of
    whole rows (sharded along another dimension than the first, or strided by FSDP2 over tensor parallelism) goes through a buffer of the size of
    one rank's part, and nothing later travels meanwhile.
    """

    def __init__(self, entries: Sequence[Entry], exchange: Exchange, prefetch: int) -> None:
        self._exchange = exchange
        self._waiting, self._flying = deque(entries), deque[_Flight]()
        largest = max((entry.nbytes for entry in entries if not _at_hand(entry)), default=0)
        self._ring = Ring(ring_bytes(largest, prefetch + 1) if largest else 0, exchange.device)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        while self._waiting or self._flying:
            self._begin()
            flight = self._flying.popleft()
            if flight.coming is not None:
                flight.coming.wait()
            yield flight.name, flight.whole
            if flight.in_ring:
                self._ring.give()

    def _begin(self) -> None:
        while self._waiting and len(self._flying) < MOST_FLIGHTS:
            flight = self._start(self._waiting[0])
            if flight is None:
                return
            self._waiting.popleft()
            self._flying.append(flight)

    def _start(self, entry: Entry) -> _Flight | None:
        """None: no room yet. With nothing in flight and nothing lent there always is."""
        if _at_hand(entry):
            return _Flight(entry.name, entry.local, None, False)
        room = self._ring.take(entry.nbytes)
        if room is None:
            return None
        whole = room.view(entry.dtype).view(entry.tensor.shape)
        return _Flight(entry.name, whole, self._fill(entry, whole), True)

    def _fill(self, entry: Entry, whole: torch.Tensor) -> Sending | None:
        if not isinstance(entry.tensor, DTensor):
            whole.copy_(entry.local)
            return None
        coming: list[tuple[int, torch.Tensor]] = []
        for block in blocks_of(entry.tensor, self._exchange.root):
            if block.rank == self._exchange.rank:
                block.place(whole, entry.local)
            elif block.is_dense(whole.shape):
                coming.append((block.rank, block.region(whole)))
            else:
                self._pass_through(entry.name, block, whole)
        return self._exchange.receive(entry.name, coming)

    def _pass_through(self, name: str, block: Block, whole: torch.Tensor) -> None:
        """Now, not later: messages of a rank arrive in order, and what is asked for later must not get these bytes."""
        buffer = torch.empty(block.shape, dtype=whole.dtype, device=whole.device)
        self._exchange.receive(name, [(block.rank, buffer)]).wait()
        block.place(whole, buffer)


def _at_hand(entry: Entry) -> bool:
    """It is published as it lies in this rank's memory."""
    whole = not isinstance(entry.tensor, DTensor) or entry.local.shape == entry.tensor.shape
    return whole and entry.tensor.dtype == entry.dtype
