"""What every worker has: its connection, its configuration, its directive, its clock, its wake-up."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING, Any

from asyncflow.config import RunConfig
from asyncflow.workers.clock import ActivityClock
from asyncflow.workers.control import ControlLink, is_expelled
from asyncflow.workers.costs import CostMeter
from asyncflow.workers.phase import Activity, Phase, PhaseMarks
from asyncflow.workers.recording import Recording
from asyncflow.workers.timeline import Timeline
from asyncflow.workers.wake import Wake
from transfer_queue.client import QueueClient
from transfer_queue.errors import QueueError
from transfer_queue.messages import TopicSpec

if TYPE_CHECKING:
    from asyncflow.contracts.worker import WorkerArgs

REPLY_S = 30.0  # deadline of a call that is answered at once on a healthy controller


class WorkerContext:
    """Built once a process by `connect`; roles get it and nothing else."""

    def __init__(self, args: WorkerArgs, client: QueueClient, config: RunConfig, security: Any) -> None:
        self.args, self.client, self.config, self.security = args, client, config, security
        self.wake = Wake()
        timeline = Timeline()
        self.clock = ActivityClock(PhaseMarks(config.run_dir, args.name), timeline)
        self.costs = CostMeter()
        self.control = ControlLink(client, self.wake, self.clock, Recording(timeline, self.costs), config.limits.heartbeat_s)

    @classmethod
    def connect(cls, args: WorkerArgs, security: Any) -> WorkerContext:
        client = QueueClient.connect(args.controller, name=args.name, role=args.role, security=security)
        return cls(args, client, RunConfig.decode(client.registration.config), security)

    @property
    def member(self) -> str:
        return f"{self.client.member}#{self.client.incarnation}"

    @property
    def topic(self) -> TopicSpec:
        """The policy's topic: the first of the run."""
        return self.client.registration.topics[0]

    def wait(self, timeout_s: float, activity: Activity = "wait", what: Phase = "idle") -> None:
        """Sleep until a reply arrives, the directive or the weights change, or the deadline; counted as waiting, unless an engine computes."""
        with self.clock.during(activity, what):
            self.client.poll(timeout_s, self.wake)
        self.wake.clear()
        self.control.check()

    def pump(self) -> None:
        """Take in the replies that have come, without waiting: while a worker computes, nobody else looks at its sockets."""
        self.client.poll(0.0)

    def run_stops(self, within_s: float) -> bool:
        """Wait for the run's stop, at most `within_s`: whether it came. For a worker whose peer is gone and who cannot know why."""
        deadline = time.monotonic() + within_s
        while self.control.directive.state != "stop" and (left_s := deadline - time.monotonic()) > 0:
            self.client.poll(left_s, self.wake)
            self.wake.clear()
        return self.control.directive.state == "stop"

    def fail(self, error: str, text: str) -> bool:
        """Tell the controller that this worker raised. Best effort with a short deadline: the launcher sees the exit code as well.

        Returns False when the controller counts this incarnation as dead: what it raised may come of that, and does not end the run.
        """
        expelled = False
        try:
            with contextlib.closing(self.client.attach()) as client:
                client.failed(error=error, traceback=text).result(5.0)
        except (QueueError, OSError) as refusal:
            expelled = is_expelled(refusal)
        self.control.close()
        return not expelled

    def leave(self) -> None:
        self.control.close()  # first: the parked heartbeat of a member that left gets no reply
        with contextlib.suppress(QueueError, OSError):
            self.client.leave().result(5.0)
        self.client.close()
        self.wake.close()

    def describe(self) -> dict[str, int | str]:
        return {"pid": os.getpid(), "host": socket.gethostname(), "role": self.args.role}
