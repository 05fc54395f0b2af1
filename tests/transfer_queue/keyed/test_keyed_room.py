"""Room that a clear made is there for the next put, though the shard hears of it from the controller, later than the client."""

from __future__ import annotations

import time

import numpy as np
import pytest

from transfer_queue.controller.shards import Shards
from transfer_queue.errors import QueueError
from transfer_queue.local import LocalQueue

HALF_AND_MORE = np.ones((1, 70_000))


def test_what_was_cleared_makes_room_for_what_is_put_next(monkeypatch: pytest.MonkeyPatch) -> None:
    tell = Shards.tell

    def late(shards: Shards) -> None:
        time.sleep(0.1 if shards._core.frees else 0.0)  # the replies are out
        tell(shards)

    monkeypatch.setattr(Shards, "tell", late)
    with LocalQueue([], keyed_only=True, capacity_bytes=1 << 20) as queue, queue.keyed("me") as me:
        for turn in range(5):
            me.put("train", [f"k{turn}"], {"x": HALF_AND_MORE})
            assert me.clear("train", [f"k{turn}"]) == 1
        me.put("train", ["last"], {"x": HALF_AND_MORE})
        begun = time.monotonic()
        with pytest.raises(QueueError, match="partition 'train' holds"):
            me.put("train", ["more"], {"x": HALF_AND_MORE})
        assert time.monotonic() < begun + 5.0
