"""The launcher's place in the run: it sees what is desired as soon as the controller says it, whatever else it asked meanwhile."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "transfer_queue"))  # whose run this is

import queue_run as run

from asyncflow.launch.link import ControllerLink
from transfer_queue.local import LocalQueue


class Nobody:
    """No processes."""

    def sentinels(self) -> list[int]:
        return []

    def look(self) -> None:
        pass


def test_a_directive_that_comes_while_a_notice_is_answered_is_seen_by_the_next_look() -> None:
    with LocalQueue([run.spec()]) as queue, queue.client("rollout-0") as worker:
        link = ControllerLink(queue.url, None, 10.0, Nobody(), lambda: True)
        try:
            while not link.alive(["rollout-0"]):
                link.poll(1.0)
            link.poll(0.0)  # from here on a question is parked
            link.dead("rollout-0", "killed by the test", fatal=False)
            begun_s = time.monotonic()
            while link.alive(["rollout-0"]):
                link.poll(5.0)
            assert time.monotonic() - begun_s < 2.5
        finally:
            link.close()
        assert worker.owner == "rollout-0#0"
