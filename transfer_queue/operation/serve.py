"""A queue by one command: controller and shards as processes, metrics beside them, and all of them ended together.

Ctrl-C or SIGTERM drains the run: nothing new is handed out, and what is under way has `drain_s`; then members have as long to leave; once more ends
everything at once. The death of the controller or of a shard ends the run. If this process is killed, the others notice and end by themselves.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from multiprocessing.connection import wait
from pathlib import Path

import msgspec

from transfer_queue.client import QueueClient
from transfer_queue.operation import settings_file
from transfer_queue.operation.child import Child
from transfer_queue.operation.parts import STOP_S, Say, drain
from transfer_queue.operation.probe import FAILURES
from transfer_queue.operation.signals import Signals
from transfer_queue.security import Security, check_bind

START_S = 30.0  # until controller and shards are up
LATE_S = 5.0  # beyond what it may take: the controller ends by itself, then the shards hear of it
LOOK_S = 1.0  # longest single wait


class ServeOptions(msgspec.Struct, frozen=True):
    """What the command was given; numbers are within the bounds of the command line."""

    file: Path
    shards: int
    bind: str
    shard_bind: str
    capacity_bytes: int  # of each shard
    keep_bytes: int
    key: Path | None  # server.key
    metrics: tuple[str, int] | None  # host and port; None: no endpoint
    drain_s: float


class Service:
    def __init__(self, options: ServeOptions, say: Say) -> None:
        """Raises ValueError or OSError for what cannot be served; nothing is started then. `say` gets one line for a person."""
        self._options, self._say = options, say
        self._security = Security.load(options.key).worker() if options.key is not None else None
        for endpoint in (options.bind, options.shard_bind):
            check_bind(endpoint, self._security)
        self._check_room()
        self._children: list[Child] = []  # the controller first
        self._url = ""
        self._failed = False  # something ended that should not have

    def run(self) -> int:
        """From the first process to the last. Main thread only. Exit code: 0 where the run completed or was asked to end, and all ended in order."""
        with Signals() as signals, ExitStack() as stack:
            self._start(stack)
            deadline: float | None = None
            while self._children:
                wait([signals.fileno(), *(child.fileno() for child in self._children)], LOOK_S)
                if signals.take():
                    if deadline is not None:
                        return self._give_up("asked twice")
                    self._say("stopping (once more to end at once)")
                    deadline = time.monotonic() + 2 * self._options.drain_s + LATE_S
                    self._drain()
                self._look()
                if deadline is None and not self._has_controller():
                    deadline = time.monotonic() + LATE_S
                if deadline is not None and self._children and time.monotonic() >= deadline:
                    return self._give_up("they did not end in time")
        return 1 if self._failed else 0

    # ------------------------------------------------------------ start

    def _check_room(self) -> None:
        """More may be admitted than fits: then a put is refused on the way, which is better told now."""
        budget = sum(topic.window.budget_bytes for topic in settings_file.load(self._options.file).topics)
        room = self._options.shards * self._options.capacity_bytes
        if budget > room:
            self._say(f"warning: the topics' budget_bytes are {budget} together, {room} fit into the shards: lower them, or add shards or capacity")

    def _start(self, stack: ExitStack) -> None:
        options, deadline = self._options, time.monotonic() + START_S
        key = ("--key", str(options.key)) if options.key is not None else ()
        served = (str(options.file), "--bind", options.bind, "--drain-s", str(options.drain_s))
        controller = self._child(stack, "controller", "controller", *served, *key)
        self._url = self._up(controller, deadline)
        sizes = ("--capacity-bytes", str(options.capacity_bytes), "--keep-bytes", str(options.keep_bytes), "--drain-s", str(options.drain_s))
        where = ("--controller", self._url, "--bind", options.shard_bind)
        shards = [
            self._child(stack, f"shard-{index}", "shard", "--index", str(index), *where, *sizes, *key) for index in range(options.shards)
        ]
        for shard in shards:
            self._up(shard, deadline)
        if options.metrics is not None:
            from transfer_queue.operation.exporter import Exporter  # an optional package

            exporter = stack.enter_context(Exporter(self._url, self._security, *options.metrics))
            self._say(f"metrics at {exporter.url}")

    def _child(self, stack: ExitStack, name: str, *arguments: str) -> Child:
        child = Child(name, *arguments)
        stack.callback(child.close)
        self._children.append(child)
        return child

    def _up(self, child: Child, deadline: float) -> str:
        endpoint = child.endpoint(deadline)
        self._say(child.said[0])
        return endpoint

    # ------------------------------------------------------------ while it runs, and its end

    def _has_controller(self) -> bool:
        return any(child.name == "controller" for child in self._children)

    def _look(self) -> None:
        for child in [child for child in self._children if not child.listen()]:
            self._children.remove(child)
            cause = child.cause(LATE_S) or "its output ended"
            self._failed |= child.failed
            if child.name == "controller":
                self._say(child.said[-1] if len(child.said) > 1 else f"controller died: {cause}")
            elif child.failed:
                self._say(f"{child.name} died: {cause}")
                self._tell_dead(child.name, cause)

    def _tell_dead(self, name: str, cause: str) -> None:
        """Its bytes are gone: the run ends for it, now and not after a heartbeat's time."""
        if not self._has_controller():
            return
        try:
            with QueueClient.outsider(self._url, security=self._security) as client:
                client.member_dead(name, cause, fatal=True).result(STOP_S)
        except FAILURES as error:
            self._say(f"the controller could not be told: {error}")

    def _drain(self) -> None:
        """By a message, for a supervisor may have told the controller itself, and a second signal would end it at once."""
        try:
            drain(self._url, self._security)
        except FAILURES as error:
            self._say(f"the controller could not be asked to end: {error}")

    def _give_up(self, why: str) -> int:
        """Leaving the context kills them."""
        self._say(f"ended at once, {why}: {', '.join(child.name for child in self._children)}")
        return 1

