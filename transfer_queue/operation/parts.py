"""Controller and shard, each as the whole work of a process: what `python -m transfer_queue controller` and `… shard` do."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType

from transfer_queue.client import QueueClient
from transfer_queue.controller import server as controller
from transfer_queue.controller.config import CoreConfig
from transfer_queue.controller.core import COMPLETED, Core
from transfer_queue.controller.moves import Moves
from transfer_queue.journal import serving as kept
from transfer_queue.journal.settings import JournalSettings
from transfer_queue.messages import Event, StallReport
from transfer_queue.operation.probe import FAILURES
from transfer_queue.security import Security
from transfer_queue.shard import server as shard
from transfer_queue.waits import render

log = logging.getLogger(__name__)

TERMINATED = "terminated"  # the reason of a run that SIGTERM or Ctrl-C ended
STOP_S = 5.0  # deadline of a stop, which a healthy controller answers at once

Say = Callable[[str], None]  # one line to whoever started us


class Announcer:
    """Observer of a queue that nobody else watches: what is out of the ordinary goes to the log."""

    def __init__(self) -> None:
        self.in_order = True  # the run completed, or somebody asked for its end
        self.reason = ""  # why it ended

    def on_moves(self, moves: Moves, t_s: float) -> None:
        """Nothing out of the ordinary: that groups move is what a queue is for."""

    def on_event(self, event: Event) -> None:
        if event.kind == "run" and event.dst == "stop":
            self.reason = event.reason
            self.in_order = event.reason == COMPLETED or bool(event.data.get("asked"))
            log.log(logging.INFO if self.in_order else logging.ERROR, "the run stops: %s", event.reason)
        elif event.kind == "run":  # a fault of ours, or of a member that raised; or the controller itself was stopped for a while
            log.warning("%s %s", event.reason, event.data.get("traceback", event.data))
        elif event.kind == "slow":
            log.warning("%s", event.reason)
        elif event.kind == "member" and event.reason == "died":
            log.warning("%s died: %s", event.member, event.data.get("cause"))


def run_controller(config: CoreConfig, bind: str, security: Security | None, drain_s: float, say: Say, journal: JournalSettings | None = None) -> int:
    """Serve until the run is stopped and its members left, or `drain_s` after the stop; SIGTERM and Ctrl-C stop it. Returns the exit code: 0 where it
    completed or was asked to end. Says where it listens, then why it ended. Main thread only. Raises ValueError or OSError before it listens.

    `journal`: lets it come back, at the same endpoint, when it is started again after a kill."""
    if journal is not None and config.comeback_s == 0:
        raise ValueError(f"journal={journal.folder!r} with comeback_s=0: members would end with the controller; set how long a restart takes in FILE")
    announcer = Announcer()

    def attach(core: Core) -> None:
        core.send_stall_to(_tell_stall)

    def ready(endpoint: str) -> None:
        _end_in_order(endpoint, security)
        say(f"controller at {endpoint}")

    if journal is None:
        serve: Callable[..., None] = controller.serve
    else:
        serve = partial(kept.serve, journal=journal)
    serve(config, lambda: announcer, bind=bind, security=security, ready=ready, grace_s=drain_s, attach=attach)
    say(f"ended: {announcer.reason}")
    return 0 if announcer.in_order else 1


def run_shard(index: int, url: str, security: Security | None, bind: str, capacity_bytes: int, keep_bytes: int, say: Say) -> int:
    """Serve until the run has ended; SIGTERM and Ctrl-C stop it, for without these bytes it cannot go on. Says where it listens, then why it ended.
    Main thread only."""
    name = f"shard-{index}"

    def ready(endpoint: str) -> None:
        _end_in_order(url, security)
        say(f"{name} at {endpoint}")

    reason = shard.serve(name, url, security, bind=bind, capacity_bytes=capacity_bytes, keep_bytes=keep_bytes, ready=ready)
    say(f"ended: {reason}")
    return 0


def stop(url: str, security: Security | None, reason: str = TERMINATED) -> None:
    """Ask the run to end: everybody is told, and the controller waits for them. Raises QueueTimeout, QueueGone, QueueRefused, QueueError."""
    with QueueClient.outsider(url, security=security) as client:
        client.stop(reason).result(STOP_S)


def _end_in_order(url: str, security: Security | None) -> None:
    """SIGTERM and Ctrl-C stop the run. Once more, and this process ends at once, for then the first had no effect, or takes too long."""
    keys = security.worker() if security is not None else None

    def ask() -> None:
        try:
            stop(url, keys)
        except FAILURES as error:
            log.error("the run was to be stopped, and could not be asked to: %s. The same signal once more ends this process", error)

    def on_signal(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        threading.Thread(target=ask, name="stop", daemon=True).start()  # it interrupts the loop anywhere: the request takes the way of everybody's

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)


def _tell_stall(report: StallReport) -> None:
    log.error("the run makes no progress and is stopped\n%s", render(report))
