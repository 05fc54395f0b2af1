"""Writers that have room reserved ahead, for the tests of what becomes of it."""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import queue_run as run
from queue_processes import values

from transfer_queue import messages as m
from transfer_queue.ahead import Room
from transfer_queue.client import QueueClient

TOPIC = "samples"
SPEC = m.TopicSpec(
    name=TOPIC,
    model="policy",
    columns=(m.Column("ids", "int32", "per_token", "rollout"),),
    consumers=(m.Consumer("reader", inputs=("ids",)), m.Consumer("trainer", inputs=("ids",), unit="group", terminal=True)),
    window=m.Window(batch=1, staleness=None),
)
LINES = len(inspect.getsourcelines(Room.put)[0]) - 3  # without those of its head; blank ones kill nobody, so that a writer dies at the next one


def reserved(client: QueueClient, write: Callable[[], object]) -> None:
    """Write until there is room on every shard."""
    deadline = run.Deadline(10.0)
    while len([peer for peer in client._peers.values() if peer.ahead is not None and peer.ahead._room is not None]) < len(client.shards):
        deadline.check("no room was reserved")
        write()
        client.shard_status()


def shape(seed: int) -> tuple[int, int]:
    return 1, 1 + seed % 400


def put_until_killed(url: str, line: int) -> None:
    with QueueClient.connect(url, name=f"writer-{line}", role="rollout") as client:
        seeds = iter(range(1000 * line, 1000 * line + 1000))

        def put() -> None:
            seed = next(seeds)
            stored = client.put(TOPIC, {"ids": values(*shape(seed), seed)})
            os.write(1, b"%d %d\n" % (m.unpacked(stored.gids)[0], seed))  # at once: others say something, too

        reserved(client, put)
        for _ in range(3):
            put()
        kill_at(line)
        put()


def kill_at(step: int) -> None:
    """From now on, this process dies before it executes the `step`-th line of the next `Room.put`, or when that returns."""
    left = step

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        left -= event == "line"
        if left < 0 or event == "return":
            os.kill(os.getpid(), signal.SIGKILL)
        return line

    sys.settrace(lambda frame, event, argument: line if frame.f_code is Room.put.__code__ else None)
