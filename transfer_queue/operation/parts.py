"""Controller and shard, each as the whole work of a process: what `python -m transfer_queue controller` and `… shard` do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from transfer_queue.client import QueueClient
from transfer_queue.controller import server as controller
from transfer_queue.controller.config import CoreConfig
from transfer_queue.controller.core import COMPLETED, Core
from transfer_queue.controller.moves import Moves
from transfer_queue.journal import serving as kept
from transfer_queue.journal.settings import JournalSettings
from transfer_queue.messages import Drain, Event, StallReport
from transfer_queue.security import Security
from transfer_queue.shard import server as shard
from transfer_queue.waits import render

log = logging.getLogger(__name__)

TERMINATED = "terminated"  # why a run drains
STOP_S = 5.0  # deadline of what a healthy controller answers at once

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
        elif event.kind == "run" and event.dst == "drain":
            log.info("the run drains: %s", event.reason)
        elif event.kind == "run":  # a fault of ours, or of a member that raised; or the controller itself was stopped for a while
            log.warning("%s %s", event.reason, event.data.get("traceback", event.data))
        elif event.kind == "slow":
            log.warning("%s", event.reason)
        elif event.kind == "member" and event.reason == "died":
            log.warning("%s died: %s", event.member, event.data.get("cause"))


def run_controller(config: CoreConfig, bind: str, security: Security | None, drain_s: float, say: Say, journal: JournalSettings | None = None) -> int:
    """Serve until the run is stopped and its members left, or `drain_s` after the stop. SIGTERM and Ctrl-C drain it: what is under way has `drain_s`,
    then it is stopped; once more ends this process at once. Returns the exit code: 0 where it completed or was asked to end. Says where it listens,
    then why it ended. Main thread only. Raises ValueError or OSError before it listens.

    `journal`: lets it come back, at the same endpoint, when it is started again after a kill."""
    if journal is not None and config.comeback_s == 0:
        raise ValueError(f"journal={journal.folder!r} with comeback_s=0: members would end with the controller; set how long a restart takes in FILE")
    announcer = Announcer()

    def attach(core: Core) -> None:
        core.send_stall_to(_tell_stall)

    def ready(endpoint: str) -> None:
        say(f"controller at {endpoint}")

    serve: Callable[..., None] = controller.serve if journal is None else partial(kept.serve, journal=journal)
    serve(config, lambda: announcer, bind=bind, security=security, ready=ready, grace_s=drain_s, attach=attach, drain_s=drain_s)
    say(f"ended: {announcer.reason}")
    return 0 if announcer.in_order else 1


def run_shard(index: int, url: str, security: Security | None, bind: str, capacity_bytes: int, keep_bytes: int, drain_s: float, say: Say) -> int:
    """Serve until the run has ended. SIGTERM and Ctrl-C drain the shard, or leave it to the run where that drains itself; once more ends this process
    at once. Says where it listens, then why it ended. Main thread only."""
    name = f"shard-{index}"

    def ready(endpoint: str) -> None:
        say(f"{name} at {endpoint}")

    sizes = {"capacity_bytes": capacity_bytes, "keep_bytes": keep_bytes}
    reason = shard.serve(name, url, security, bind=bind, **sizes, ready=ready, drain_s=drain_s)
    say(f"ended: {reason}")
    return 0


def drain(url: str, security: Security | None) -> None:
    """Ask the run to drain and to end then. Raises QueueTimeout, QueueGone, QueueRefused, QueueError."""
    with QueueClient.outsider(url, security=security) as client:
        client.submit(Drain(reason=TERMINATED)).result(STOP_S)


def _tell_stall(report: StallReport) -> None:
    log.error("the run makes no progress and is stopped\n%s", render(report))
