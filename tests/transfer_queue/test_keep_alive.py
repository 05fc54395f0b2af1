"""A member that waits, or computes, is not taken for dead."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest

from transfer_queue import messages as m
from transfer_queue.errors import QueueError
from transfer_queue.local import LocalQueue

HEARTBEAT_S = 0.8
SPEC = m.TopicSpec(
    name="t",
    model="policy",
    columns=(m.Column("x", "float32", "scalar", "writer"),),
    consumers=(m.Consumer("train", inputs=("x",), unit="group", terminal=True),),
    window=m.Window(batch=1, staleness=0),
)


def heartbeats() -> LocalQueue:
    return LocalQueue([SPEC], heartbeat_s=HEARTBEAT_S)


def test_a_member_that_waits_for_work_or_for_room_for_longer_than_a_heartbeat_gets_it() -> None:
    with ExitStack() as stack:
        queue = stack.enter_context(heartbeats())
        trainer = stack.enter_context(queue.client("train", "train"))
        taken = trainer.take("t", "train", limit=1, step=0, wait_s=20.0)
        assert trainer.poll(3 * HEARTBEAT_S) == set()
        writer = stack.enter_context(queue.client("writer", "writer"))
        assert len(writer.put("t", {"x": np.ones(1, "float32")}).groups) == 1
        lease = taken.result(5.0).lease
        puts: list[m.OkStored] = []
        waits = threading.Thread(target=lambda: puts.append(writer.put("t", {"x": np.ones(1, "float32")}, wait_s=20.0)))
        waits.start()
        assert trainer.poll(3 * HEARTBEAT_S) == set()
        trainer.commit("t", "train", "policy", epoch=0, step=0, leases=[lease]).result(5.0)
        waits.join(10.0)
        assert [len(put.groups) for put in puts] == [1]


def test_a_member_that_computes_is_kept_alive_by_a_thread_and_without_one_it_is_told_why_it_ended() -> None:
    with heartbeats() as queue:
        with queue.client("kept", "train") as kept, queue.client("silent", "train") as silent:
            heart = kept.keep_alive()
            assert kept.keep_alive() is heart
            time.sleep(3 * HEARTBEAT_S)  # it computes
            heart.check()
            assert kept.take("t", "train", limit=1, step=0, wait_s=0.0).result(5.0).lease == -1
            with pytest.raises(QueueError, match=r"no message for 0\.8 s.*keep_alive") as refused:
                silent.take("t", "train", limit=1, step=0, wait_s=0.0).result(5.0)
            assert refused.value.code == "stale_incarnation"
        assert "queue-heartbeat" not in [thread.name for thread in threading.enumerate()]
        deadline = time.monotonic() + 10.0
        while len(members := queue.status().members) > 1 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert list(members.values()) == ["shard"]
