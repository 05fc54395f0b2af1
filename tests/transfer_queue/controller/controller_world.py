"""A whole run around the real state machine, driven step by step: what the simulation tests run.

Only the clock is fake. A missed wake-up shows as a stall, for nobody asks twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from controller_actors import ROWS, Actor, Publisher, Rollout, Source, Stage, Trainer
from controller_bench import Clock, Log, spec

from transfer_queue import messages as m
from transfer_queue.controller.core import Core, CoreConfig
from transfer_queue.controller.duties import Duty

OPEN = ("admitted", "generating", "complete", "leased")
WAITS_EVERY = 20  # calls


@dataclass
class Settings:
    seed: int
    batch: int = 4
    staleness: int | None = 2
    policy: m.Policy = "wait"
    total: int = 26  # not a multiple of the batch: the last one is short
    rollouts: int = 3
    requeue: bool = False
    deaths: float = 0.01  # chance that an actor dies instead of acting
    hang: float = 0.01  # chance that a rollout hangs until its leases are gone
    slow: float = 0.1  # chance that a response is long
    slow_stages: float = 0.01  # chance that a stage does nothing for up to three times its lease
    load_chance: float = 0.3  # that a rollout loads newer weights when it acts
    evaluate_every: int | None = 3
    budget_groups: int = 12  # bytes, in worst-case groups
    hand_backs: float = 0.0  # chance that a rollout hands back all that it has
    drops: float = 0.0  # chance that the advantage stage gives its groups up


class World:
    refusals: tuple[str, ...] = ("stale_incarnation",)  # codes of errors that an actor may meet

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.rng = random.Random(settings.seed)
        self.clock = Clock()
        self.log = Log()
        self.deaths = 0
        self.closed = False
        self.calls = 0
        self.published_step = 0
        self.evaluated: list[int] = []
        self.tokens: dict[int, list[int]] = {}  # block of a tokens column -> versions of its tokens
        self.left: dict[int, dict[int, list[int]]] = {}  # block of what was handed back -> row -> versions of its tokens
        self.handed_back = 0  # groups
        self.stalenesses: list[int] = []  # of every trained row: version trained from - oldest token
        self.trained_gids: list[int] = []
        self.blocks = 0
        self._serial = 0
        self._freed: set[int] = set()
        topic = spec(
            settings.batch,
            settings.staleness,
            settings.policy,
            ROWS,
            requeue=settings.requeue,
            group_bytes=1,
            budget_bytes=settings.budget_groups,
        )
        duties = [] if settings.evaluate_every is None else [Duty(name="evaluate", role="rollout", model="policy", every=settings.evaluate_every)]
        self.config = CoreConfig(topics=[topic], duties=duties, lease_s=5.0, heartbeat_s=10.0, stall_s=120.0)
        self.core = self.start(self.config)
        self._callbacks: dict[tuple[bytes, int], Actor] = {}
        names = [f"rollout-{i}" for i in range(settings.rollouts)]
        stages = ["reward-0", "forward-0", "forward-1", "advantage-0"]
        makers: list[tuple[Callable[[World, str], Actor], str]] = [(Publisher, "publisher"), (Source, "source"), (Trainer, "trainer")]
        makers += [(Rollout, name) for name in names] + [(Stage, name) for name in stages]
        self.actors = [make(self, name) for make, name in [*self.servers(), *makers]]

    def servers(self) -> list[tuple[Callable[[World, str], Actor], str]]:
        """Who is there before all others."""
        return []

    def start(self, config: CoreConfig) -> Core:
        return Core(config, self.log, self.clock)

    def serial(self) -> int:
        self._serial += 1
        return self._serial

    def slice(self) -> m.Slice:
        self.blocks += 1
        return m.Slice(0, self.blocks, 0, 1)

    def publish_is_due(self) -> bool:
        """Order: commit, publish, then the next step."""
        return self.published_step < self.core.topics["policy"].version

    def call(self, actor: Actor | None, request: m.Request, parked: int | None = None) -> m.Reply | None:
        number = self.serial() if parked is None else parked
        connection = b"launcher" if actor is None else actor.connection
        if parked is not None and actor is not None:
            self._callbacks[connection, number] = actor
        self.core.handle(connection, msgspec.structs.replace(request, id=number))
        return self._drain((connection, number))

    def _drain(self, own: tuple[bytes, int] | None = None) -> m.Reply | None:
        found = None
        outbox, self.core.outbox = self.core.outbox, []
        self.check()
        for connection, reply in outbox:
            assert not (isinstance(reply, m.ErrorReply) and reply.code not in self.refusals), reply
            actor = self._callbacks.pop((connection, reply.id), None)
            if (connection, reply.id) == own and actor is None:
                found = reply
            elif actor is not None and actor.alive and actor.connection == connection:
                actor.waiting = None
                actor.answered(reply)
        return found

    def check(self) -> None:
        """The ledger balances with the records and with the replayed log; blocks are freed once."""
        topic = self.core.topics["policy"]
        states = [group.state for group in topic.groups.values()]
        for state in OPEN:
            assert topic.ledger.counts[state] == states.count(state) == self.log.counts.get(state, 0)
        assert {key: count for key, count in topic.ledger.counts.items() if count} == {key: count for key, count in self.log.counts.items() if count}
        assert topic.ledger.lives == self.log.admitted
        assert topic.stored_rows == sum(len(group.rows) for group in topic.groups.values())
        freed = [block for blocks in self.core.frees.values() for block in blocks]
        self.core.frees.clear()
        assert self._freed.isdisjoint(freed), "a block was freed twice"
        assert self._freed.isdisjoint(self.core.live_blocks(0)), "a live block was freed"
        self._freed.update(freed)
        self.calls += 1
        if self.calls % WAITS_EVERY == 0:
            self.core.handle(b"person", m.Status(id=0, waits=True))  # whatever the state, it can be told whose move it is
            _, reply = self.core.outbox.pop()
            assert isinstance(reply, m.OkStatus), reply

    def trained(self, clock: int, leases: list[m.OkTaken]) -> None:
        tokens = self.core.topics["policy"].schema.consumers[-1].inputs.index("tokens")
        for row in (row for lease in leases for row in lease.rows):
            piece = row.columns[tokens]
            assert piece is not None
            assert None not in row.columns
            self.stalenesses.append(clock - min(self.tokens[piece.block]))
        self.trained_gids += sorted({row.gid for lease in leases for row in lease.rows})

    def step(self) -> None:
        self.clock.now += self.rng.random() * 0.1
        due = self.core.next_deadline()
        if due is not None and due <= self.clock.now:
            self.core.tick()
            self._drain()
        self.rng.choice(self.actors).act()

    def run(self, limit: int = 60_000) -> m.StatusRecord:
        for _ in range(limit):
            if self.core.stopped:
                break
            self.step()
        return self.core.status()
