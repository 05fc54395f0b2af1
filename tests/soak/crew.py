"""Everybody who takes part, kept alive: whoever was killed is started again at once, and whoever ends by himself is told of."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.soak import processes
from tests.soak.flat import Sample
from tests.soak.processes import Child
from tests.soak.settings import CONTROLLER, GROUPS, SHARDS, Settings, seats
from transfer_queue import messages as m
from transfer_queue.client import QueueClient
from transfer_queue.operation.probe import FAILURES, Probe
from transfer_queue.operation.report import QueueReport

SAMPLE_S = 2.0
LOOK_S = 0.2  # longest single wait: also how often it is looked whether what is waited for has come
ASK_S = 5.0  # deadline of one answer of the queue
TELL_S = 1.0  # the same where a start waits for it
MOST_PROBLEMS = 20  # then the run is given up
LOG_BYTES = 2000  # of a log that is shown


class Broken(RuntimeError):
    """The run cannot go on to its end."""


class Crew:
    def __init__(self, settings: Settings) -> None:
        self._folder = Path(settings.folder)
        self.children = {seat.name: Child(seat, settings) for seat in seats()}
        self.url = ""
        self.problems: list[str] = []
        self.kills: list[tuple[float, str]] = []  # when, which process
        self.samples: list[Sample] = []
        self.calm = False  # the topics have their counts: workers end when they are over
        self.ending = False  # servers may end by themselves
        self._sampled = 0.0
        self._probe: Probe | None = None
        self._client: QueueClient | None = None

    # ------------------------------------------------------------ beginning and end

    def start(self) -> None:
        """Controller, then shards, then who needs both."""
        endpoint = self._folder / "journal" / "endpoint"
        self.children[CONTROLLER].start("")
        self.until(endpoint.exists, processes.UP_S, "the controller does not listen")
        self.url = endpoint.read_text()
        self._probe, self._client = Probe(self.url), QueueClient.outsider(self.url)
        for child in self.children.values():
            if child.seat.kind == "shard":
                child.start(self.url)
        self.until(lambda: (status := self.status()) is not None and len(status.shards) == SHARDS, processes.UP_S, "the shards do not join")
        for child in self.children.values():
            if child.life < 0:
                child.start(self.url)

    def close(self) -> None:
        """Kill who is left."""
        for each in (self._probe, self._client):
            if each is not None:
                each.close()
        for child in self.children.values():
            if child.pidfd >= 0:
                child.kill()
                child.close()

    # ------------------------------------------------------------ meanwhile

    def until(self, reached: Callable[[], bool], within_s: float, what: str) -> None:
        """Look after everybody until it is so. Raises Broken past the deadline, and where too much goes wrong."""
        deadline = time.monotonic() + within_s
        while not reached():
            if time.monotonic() > deadline:
                raise Broken(f"{what}: not within {within_s:g} s")
            self.turn(LOOK_S)

    def turn(self, timeout_s: float) -> None:
        """One wait, for somebody's end."""
        ended = processes.wait(list(self.children.values()), min(timeout_s, SAMPLE_S))
        for child in sorted(ended, key=lambda child: child.seat.name != CONTROLLER):  # the controller first: it is told of the others
            self._ended(child)
        if time.monotonic() >= self._sampled + SAMPLE_S:
            self._sampled = time.monotonic()
            self._sample()
        if len(self.problems) > MOST_PROBLEMS:
            raise Broken("too much goes wrong")

    def kill(self, rng: Random) -> None:
        """One of them, whoever it is, but for the spared ones."""
        kinds = rng.choice(GROUPS)
        there = [child for child in self.children.values() if child.seat.kind in kinds and child.pidfd >= 0 and not child.seat.spared]
        if not there:
            return
        child = rng.choice(there)
        self.kills.append((time.monotonic(), child.seat.name))
        child.kill()

    # ------------------------------------------------------------ what the queue says of itself

    @property
    def client(self) -> QueueClient:
        """No member."""
        assert self._client is not None, "the controller is up"
        return self._client

    def status(self, within_s: float = ASK_S) -> m.StatusRecord | None:
        """None: the controller is not there."""
        try:
            reply: m.OkStatus = self.client.status().result(within_s)
        except FAILURES:
            return None
        return reply.status

    def told(self) -> m.StatusRecord:
        """The same, as soon as the controller is there. Raises Broken."""
        self.until(lambda: self.status() is not None, processes.UP_S, "the controller does not answer")
        status = self.status()
        if status is None:
            raise Broken("the controller answered once, and not again")
        return status

    def ask(self, waits: bool = False) -> QueueReport | None:
        """With what the shards say."""
        assert self._probe is not None, "the controller is up"
        try:
            return self._probe.ask(ASK_S, waits)
        except FAILURES:
            return None

    # ------------------------------------------------------------ inside

    def _ended(self, child: Child) -> None:
        code = child.close()
        life = f"{child.seat.name}.{child.life}"
        if not child.killed and not (code == 0 and self._may_end(child)):
            self.problems.append(f"{life} ended by itself with {code}: …{child.log.read_text(errors='replace')[-LOG_BYTES:]}")
        if code == 0 and not child.killed:
            child.ended = True
            return
        if child.seat.kind == "shard":
            self._tell(child)
        if not self.ending:
            child.start(self.url)

    def _may_end(self, child: Child) -> bool:
        """By itself, in order."""
        kind = child.seat.kind
        return kind == "fuzzer" or (self.ending if kind in ("controller", "shard") else self.calm)

    def _tell(self, child: Child) -> None:
        """That a shard is gone, as whoever restarts it does: of this incarnation, for it may come late."""
        status = self.status(TELL_S)
        owner = next((owner for owner in status.members if owner.startswith(f"{child.seat.name}#")), None) if status is not None else None
        if owner is None:
            return
        try:
            self.client.member_dead(child.seat.name, "killed", int(owner.rpartition("#")[2])).result(TELL_S)
        except FAILURES:
            return  # the controller is gone too: that the next life joins tells it

    def _sample(self) -> None:
        now = time.monotonic()
        for child in self.children.values():
            if child.pidfd < 0:
                continue
            try:
                memory, open_ = processes.pss_bytes(child.pid), processes.descriptors(child.pid)
            except (OSError, StopIteration):  # it has just ended
                continue
            self.samples.append(Sample(now, child.seat.kind, f"{child.seat.name}.{child.life}", now - child.started, memory, open_))
