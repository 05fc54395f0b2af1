"""The end of a queue inside one process whose run ended by itself."""

from __future__ import annotations

import msgspec
import queue_run
from scripted import CRITIC, ROLES, train_critic

from transfer_queue.local import LocalQueue

SPEC = msgspec.structs.replace(queue_run.spec(batch=2, staleness=0), name=CRITIC, model=CRITIC)


def complete(queue: LocalQueue) -> None:
    with queue.client("me", "all") as me:
        train_critic(dict.fromkeys(ROLES, me))
        me.leave().result(5.0)


def test_a_run_that_completes_may_be_left_at_once_or_later() -> None:
    with LocalQueue([SPEC], shards=2) as at_once:
        complete(at_once)
    with LocalQueue([SPEC], shards=2) as later:
        complete(later)
        for thread in later._threads:
            thread.join(10.0)
        assert not any(thread.is_alive() for thread in later._threads)
    for queue in (at_once, later):
        assert [event.reason for event in queue.events if event.kind == "run" and event.dst == "stop"] == ["completed"]
