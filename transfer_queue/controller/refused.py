"""What a request names that was not taken in: its bytes have no owner and are freed."""

from __future__ import annotations

import numpy as np

from transfer_queue.controller.blocks import places_of
from transfer_queue.messages import HandBack, KeyedPut, Put, PutPrompts, PutRows, Request, Slice, WriteBack, places


def places_in(request: Request) -> list[np.ndarray]:
    """The places, [n, 4] each, that a refused request names; buffers of another length name none."""
    if isinstance(request, PutPrompts):
        pieces = (piece for prompt in request.prompts for piece in prompt.columns.values())
        return [places_of(piece for piece in pieces if _is_place(piece))]
    if isinstance(request, HandBack):
        return [places_of(item.left for item in request.groups if item.left is not None and _is_place(item.left))]
    if isinstance(request, KeyedPut):
        return [places(b"".join(cells.places for cells in request.columns.values() if len(cells.places) % 32 == 0))]
    columns = request.rows.columns if isinstance(request, PutRows) else request.columns if isinstance(request, WriteBack | Put) else {}
    return [places(buffer) for buffer in columns.values() if len(buffer) % 32 == 0]


def _is_place(piece: Slice) -> bool:
    return max(map(abs, (piece.shard, piece.block, piece.start, piece.stop))) < 1 << 63
