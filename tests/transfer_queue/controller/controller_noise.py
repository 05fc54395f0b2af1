"""A member that sends well-formed nonsense into a simulated run: copies of what the others send, with one value gone wild."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
from controller_actors import Actor
from controller_world import Settings, World

from transfer_queue import messages as m
from transfer_queue.wire import decode_request, encode

WILD = (-(2**63), -1, 0, 1, 2**31, 2**63 - 1, 2**64 - 1)
HARMLESS = (m.Watch, m.Demand, m.Pull, m.Progress, m.HandBack, m.PutRows, m.DropGroups, m.Take, m.WriteBack, m.Release, m.Renew, m.Report)
"""Requests that may end nothing but what their sender holds, whatever they say."""


def mutate(value: Any, rng: random.Random) -> Any:
    """Another value of the same type, or the same record with one field or element mutated."""
    if isinstance(value, msgspec.Struct):
        names = [name for name in value.__struct_fields__ if name not in ("id", "topic")]
        name = rng.choice(names)
        return msgspec.structs.replace(value, **{name: mutate(getattr(value, name), rng)})
    if isinstance(value, list | tuple) and value:
        place = rng.randrange(len(value))
        changed = [*value[:place], mutate(value[place], rng), *value[place + 1 :]]
        return type(value)(rng.choice([changed, changed, list(value) * 2, []]) if isinstance(value, list) else changed)
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        return rng.choice([{**value, key: mutate(value[key], rng)}, {mutate(key, rng): value[key]}, {}])
    if isinstance(value, bytes):
        numbers = np.frombuffer(value, dtype=np.uint64).copy()
        numbers[rng.randrange(len(numbers)) if len(numbers) else slice(0)] = rng.choice(WILD) % 2**64
        return rng.choice([numbers.tobytes(), numbers.tobytes(), value * 2, value[:-1], b""])
    if isinstance(value, float):
        return rng.choice([float("nan"), float("inf"), -1.0, 0.0, 30.0])
    return rng.choice(["", "#", "x" * 300]) if isinstance(value, str) else rng.choice(WILD)


class NoisyWorld(World):
    """Before each request of the run, a mutated copy of it may come from the member "noise"."""

    def __init__(self, settings: Settings, chance: float) -> None:
        self.refused = self.accepted = 0
        self._chance, self._noise = chance, -1
        super().__init__(settings)

    def call(self, actor: Actor | None, request: m.Request, parked: int | None = None) -> m.Reply | None:
        if isinstance(request, HARMLESS) and self.rng.random() < self._chance:
            self._disturb(request)
        return super().call(actor, request, parked)

    def _disturb(self, request: m.Request) -> None:
        if self._noise < 0 or self.rng.random() < 0.02:  # what it got is given back now and then, else a batch would stay with it
            joined = self._send(m.Register(name="noise", role="noise", pid=1, host="h"))
            assert isinstance(joined, m.OkRegistered)
            self._noise = joined.incarnation
        fresh = msgspec.structs.replace(mutate(request, self.rng), member="noise", incarnation=self._noise)  # type: ignore[call-arg]
        try:
            fresh = decode_request(encode(self._renewed(fresh)))
        except (msgspec.DecodeError, OverflowError):
            return
        before = state(self)
        reply = self._send(fresh)
        if isinstance(reply, m.ErrorReply):
            assert reply.code == "bad_request", f"{fresh} → {reply}"
            assert state(self) == before, f"a refused request changed something: {fresh} → {reply}"
        self.refused += isinstance(reply, m.ErrorReply)
        self.accepted += not isinstance(reply, m.ErrorReply)

    def _renewed(self, request: m.Request) -> m.Request:
        """Blocks of its own: what is refused is freed, and must not be what the run stores."""
        if isinstance(request, m.PutRows):
            columns = {name: self._moved(buffer) for name, buffer in request.rows.columns.items()}
            return msgspec.structs.replace(request, rows=msgspec.structs.replace(request.rows, columns=columns))
        if isinstance(request, m.HandBack):
            return msgspec.structs.replace(request, groups=[self._elsewhere(item) for item in request.groups])
        if isinstance(request, m.WriteBack):
            return msgspec.structs.replace(request, columns={name: self._moved(buffer) for name, buffer in request.columns.items()})
        return request

    def _elsewhere(self, item: m.HandedBack) -> m.HandedBack:
        if item.left is None:
            return item
        return msgspec.structs.replace(item, left=msgspec.structs.replace(item.left, shard=1, block=self.slice().block))

    def _moved(self, buffer: bytes) -> bytes:
        if len(buffer) % 32:
            return buffer  # refused by its length, before anybody looks at the places
        table = m.places(buffer).copy()
        table[:, 0], table[:, 1] = 1, [self.slice().block for _ in table]
        return m.packed(table)

    def _send(self, request: m.Request) -> m.Reply | None:
        """Its reply if it came at once. What it makes possible for others is theirs."""
        number = self.serial()
        self.core.handle(b"noise", msgspec.structs.replace(request, id=number))
        own = [reply for connection, reply in self.core.outbox if (connection, reply.id) == (b"noise", number)]
        assert len(own) <= 1, f"two replies to {request}"
        self.core.outbox = [(connection, reply) for connection, reply in self.core.outbox if connection != b"noise"]
        self._drain()
        return own[0] if own else None

    def _drain(self, own: tuple[bytes, int] | None = None) -> m.Reply | None:
        self.core.outbox = [(connection, reply) for connection, reply in self.core.outbox if connection != b"noise"]
        return super()._drain(own)


def state(world: World) -> list[Any]:
    """Everything a request can change, as plain values."""
    topic = world.core.topics["policy"]
    fields = ("state", "version", "min_version", "holder", "fence", "deadline", "attempt_tokens", "attempt_oldest", "closed")
    return [
        dict(topic.ledger.counts),
        [(gid, *(getattr(group, name) for name in fields), sorted(group.rows), sorted(group.blocks)) for gid, group in topic.groups.items()],
        [(lease.id, lease.owner, lease.keys.tolist(), lease.alive().tolist(), lease.due().tolist()) for lease in topic.leases],
        [(rows, len(ready)) for rows, ready in zip(topic.queues.rows, topic.queues.sets, strict=True)],
        (topic.done_rows[:], topic.stored_rows, topic.late, topic.version, len(topic.prompts), topic.prompts.cursor),
        [(member.owner, dict(member.loaded), dict(member.endpoints), member.duty, dict(member.cancelled)) for member in world.core.members],
        world.core.live_blocks(0) + world.core.live_blocks(1),
    ]
