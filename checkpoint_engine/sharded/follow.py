"""The other ranks' side of a walk: each sends its parts in the order in which the root asks for them, and yields nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from torch.distributed.tensor import DTensor

from checkpoint_engine.sharded.blocks import blocks_of
from checkpoint_engine.sharded.entries import Entry
from checkpoint_engine.sharded.exchange import Exchange, Sending
from checkpoint_engine.sharded.gather import MOST_FLIGHTS


def follow(entries: Sequence[Entry], exchange: Exchange, prefetch: int) -> None:
    """Returns when the root has taken everything. A part is sent from the parameter's own memory; where it has to be cast or moved, at most
    `prefetch` + 1 such copies (of parts) exist."""
    flying: deque[tuple[Sending, bool]] = deque()
    copies = 0
    for entry in entries:
        if not _is_sent(entry, exchange):
            continue
        if len(flying) == MOST_FLIGHTS or copies > prefetch:
            copies -= _land(flying)
        sending, copied = _send(entry, exchange)
        flying.append((sending, copied))
        copies += copied
        del sending  # it keeps the copy
    while flying:
        _land(flying)


def _land(flying: deque[tuple[Sending, bool]]) -> bool:
    """Wait for the oldest; whether it was a copy."""
    sending, copied = flying.popleft()
    sending.wait()
    return copied


def _is_sent(entry: Entry, exchange: Exchange) -> bool:
    if not isinstance(entry.tensor, DTensor):
        return False
    return any(block.rank == exchange.rank for block in blocks_of(entry.tensor, exchange.root))


def _send(entry: Entry, exchange: Exchange) -> tuple[Sending, bool]:
    """This rank's part on its way, and whether it is a copy."""
    local = entry.local
    part = local.to(device=exchange.device, dtype=entry.dtype).contiguous()
    return exchange.send(entry.name, part), part.data_ptr() != local.data_ptr()
