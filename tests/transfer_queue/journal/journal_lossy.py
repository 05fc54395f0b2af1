"""A simulated run over shards that die and come back without their bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from controller_actors import Actor, Trainer
from controller_world import Settings, World

from transfer_queue import messages as m
from transfer_queue.controller.core import Core, CoreConfig
from transfer_queue.shard.messages import LIFE_BITS

ADVANTAGE = 2  # number of the stage that works on whole groups


class Shard(Actor):
    """Its bytes end with its incarnation."""

    role = "shard"

    def ask(self, request: m.Request) -> m.Reply | None:
        if isinstance(request, m.Register):
            request = msgspec.structs.replace(request, endpoints={"shard": f"tcp://127.0.0.1:{9000 + int(self.name[-1])}"})
        return super().ask(request)


class LossyWorld(World):
    """`losses`: chance, for each turn of a shard, that it dies."""

    refusals = ("stale_incarnation", "shard_lost")

    def __init__(self, settings: Settings, shards: int = 2, losses: float = 0.02, rewinds: bool = False) -> None:
        self.shards, self.losses, self.rewinds = shards, losses, rewinds
        self.leased: dict[int, dict[int, set[int]]] = {}  # lease of the advantage stage → gid → blocks of its responses
        self.made_of: dict[int, set[int]] = {}  # block of an advantage → the blocks of the responses that it was computed over
        super().__init__(settings)

    def start(self, config: CoreConfig) -> Core:
        topics = [msgspec.structs.replace(topic, rewinds=self.rewinds) for topic in config.topics]
        return super().start(msgspec.structs.replace(config, topics=topics))

    def servers(self) -> list[tuple[Callable[[World, str], Actor], str]]:
        return [(Shard, f"shard-{index}") for index in range(self.shards)]

    def slice(self) -> m.Slice:
        """On any shard that the controller holds for alive, maybe wrongly. Without any, a writer waits for one."""
        self.blocks += 1
        if not self._alive():
            next(actor for actor in self.actors if isinstance(actor, Shard)).begin()
        shard = self.rng.choice(self._alive())
        return m.Slice(int(shard.name[-1]), shard.incarnation << LIFE_BITS | self.blocks, 0, 1)

    def _alive(self) -> list[Any]:
        return [member for member in self.core.members if member.role == "shard"]

    def call(self, actor: Actor | None, request: m.Request, parked: int | None = None) -> m.Reply | None:
        if isinstance(request, m.WriteBack) and request.consumer == "advantage":
            blocks = m.places(request.columns["advantage"])[:, 1].tolist()
            for gid, block in zip(m.unpacked(request.gids).tolist(), blocks, strict=True):
                self.made_of[block] = self.leased[request.lease][gid]
        return super().call(actor, request, parked)

    def _drain(self, own: tuple[bytes, int] | None = None) -> m.Reply | None:
        for _, reply in self.core.outbox:
            if isinstance(reply, m.OkTaken) and reply.lease != -1:
                self._look_at(reply)
            if isinstance(reply, m.OkPulled):
                assert not any(self._is_lost(piece.shard, piece.block) for lease in reply.groups for piece in lease.columns.values())
                assert not any(self._is_lost(lease.left.shard, lease.left.block) for lease in reply.groups if lease.left is not None)
        return super()._drain(own)

    def _look_at(self, taken: m.OkTaken) -> None:
        for buffer in taken.rows.columns:
            for shard, block, *_ in m.places(buffer).tolist():
                assert not self._is_lost(shard, block), "handed out, although nobody can read it"
        topic = self.core.topics["policy"]
        lease = topic.leases.get(taken.lease)
        if lease is not None and lease.consumer == ADVANTAGE:
            gids = np.unique(m.unpacked(taken.rows.gids)).tolist()
            self.leased[taken.lease] = {gid: self._responses(gid) for gid in gids}

    def _responses(self, gid: int) -> set[int]:
        topic = self.core.topics["policy"]
        place = topic.schema.place_of["tokens"]
        return set(topic.groups.rows.places[topic.groups[gid].row_slots, place, 1].tolist())

    def _is_lost(self, shard: int, block: int) -> bool:
        lost: dict[int, int] = self.core._runtime.blocks.lost
        return shard in lost and block < lost[shard]

    def trained(self, clock: int, leases: list[m.OkTaken]) -> None:
        super().trained(clock, leases)
        inputs = self.core.topics["policy"].schema.consumers[-1].inputs
        tokens, advantage = inputs.index("tokens"), inputs.index("advantage")
        responses: dict[int, set[int]] = {}
        for row in (row for lease in leases for row in lease.rows):
            responses.setdefault(row.gid, set()).add(_block(row, tokens))
        for row in (row for lease in leases for row in lease.rows):
            assert self.made_of[_block(row, advantage)] == responses[row.gid], "an advantage over another group than the one that is trained"

    def step(self) -> None:
        settings, self.settings = self.settings, dataclasses.replace(self.settings, deaths=self.losses)
        shard: Any = self.rng.choice(self.actors)
        if isinstance(shard, Shard):
            shard.act()
        self.settings = settings
        super().step()


class BlindTrainer(Trainer):
    """Reads its batch only before it commits: what a shard took with it by then is dropped, and replaced."""

    def _commit(self) -> None:
        world: Any = self.world
        rows = [row for lease in self.leases for row in lease.rows]
        gone = sorted({row.gid for row in rows if any(world._is_lost(piece.shard, piece.block) for piece in row.columns)})
        if not gone:
            super()._commit()
            return
        self.ask(m.DropGroups(topic="policy", gids=gone, reason="shard_lost", **self.who))
        self.leases = [
            msgspec.structs.replace(lease, rows=lease.rows.picked(~np.isin(m.unpacked(lease.rows.gids), gone))) for lease in self.leases
        ]


def _block(row: m.RowRef, column: int) -> int:
    piece = row.columns[column]
    assert piece is not None
    return piece.block
