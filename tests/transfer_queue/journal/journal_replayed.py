"""A simulated run whose trainer gets groups again, and what must hold of them after every step, whoever dies."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
from controller_world import Settings, World
from journal_dealt import DealtWorld
from journal_kept import KeptWorld
from journal_lossy import LossyWorld

from transfer_queue import messages as m
from transfer_queue.controller.core import Core, CoreConfig
from transfer_queue.controller.replays import Replays
from transfer_queue.messages import unpacked

TRAINER = 3  # number of the consumer
WORST_BYTES = 9  # of a group while it is open: the prompt, and of each of two rows four columns, a byte and a block each
GROUP_BYTES = 7  # of a group as the trainer reads it: all of that but the rewards


class ReplayedWorld(World):
    def __init__(self, settings: Settings, replay: m.Replay, *more: Any) -> None:
        """`more`: what a LossyWorld or a KeptWorld takes."""
        self.replay = replay
        self.rows: dict[int, list[m.RowRef]] = {}  # of every group as it was trained
        self.replayed: Counter[int] = Counter()  # gid → how often
        super().__init__(settings, *more)

    def start(self, config: CoreConfig) -> Core:
        (topic,) = config.topics
        *others, trainer = topic.consumers
        budget_bytes = WORST_BYTES * self.settings.budget_groups + self.replay.set_aside(WORST_BYTES)
        window = msgspec.structs.replace(topic.window, group_bytes=WORST_BYTES, budget_bytes=budget_bytes)
        consumers = (*others, msgspec.structs.replace(trainer, replay=self.replay))
        self.config = msgspec.structs.replace(config, topics=[msgspec.structs.replace(topic, consumers=consumers, window=window)])
        return super().start(self.config)

    @property
    def store(self) -> Any:
        found: Replays = self.core.topics["policy"].replays[TRAINER]
        return found

    def trained(self, clock: int, leases: list[m.OkTaken]) -> None:
        super().trained(clock, leases)
        rows = [row for lease in leases for row in lease.replayed.rows]
        times = [count for lease in leases for count in unpacked(lease.replayed.times).tolist()]
        assert all(count == self.replayed[row.gid] for row, count in zip(rows, times, strict=True))
        for gid in {row.gid for row in rows}:
            assert [row for row in rows if row.gid == gid] == self.rows[gid], "another group than was trained, in part, or twice in a batch"
        if self.settings.staleness is not None:
            assert min((row.oldest_version for row in rows), default=clock) >= clock - self.settings.staleness
        self.replayed.update({row.gid for row in rows})
        assert len({row.gid for row in rows}) <= self.replay.groups
        for row in (row for lease in leases for row in lease.rows):
            assert row.gid not in self.replayed
            self.rows.setdefault(row.gid, []).append(row)

    def check(self) -> None:
        super().check()
        store, topic = self.store, self.core.topics["policy"]
        assert len(store) <= self.replay.keep_groups
        assert store.nbytes + topic.ledger.open * WORST_BYTES <= topic.spec.window.budget_bytes
        assert store.nbytes <= self.replay.set_aside(WORST_BYTES)
        assert store.nbytes == sum(group.nbytes for group in store._kept.values())
        assert set(store._kept) == {gid for gid in store._kept if gid in store._lots} | set(store._leased)
        assert not [gid for gid in store._leased if gid in store._lots]
        assert store._leased == {gid: lease for lease, gids in store._leases.items() for gid in gids}
        assert store._leased_bytes == sum(store._kept[gid].nbytes for gid in store._leased)
        assert set(store._leases) <= {lease.id for lease in topic.leases if lease.consumer == TRAINER}
        assert all(topic.groups.get(gid) is None for gid in store._kept), "only what has ended"
        if self.calls % 10 == 0:
            self.count_references()

    def count_references(self) -> None:
        """Every block is referred to as often as something refers to it: nothing is freed that is held, nothing is held that is gone."""
        topic, blocks = self.core.topics["policy"], self.core._runtime.blocks
        places = [table.places[table.slots()].reshape(-1, 4) for table in (topic.groups.rows, topic.groups.groups)]
        places += [group.blocks for group in self.store._kept.values()]
        found = Counter((shard, block) for table in places for shard, block, *_ in table.tolist() if shard >= 0)
        found.update((piece.shard, piece.block) for prompt, _ in topic.prompts._waiting for piece in prompt.columns.values())
        counted = {(shard, block): int(counts.find(block)) for shard, counts in blocks._counts.items() for block in list(counts.keys())}
        assert counted == found

    def finish(self) -> None:
        """To the end, with what every simulated run must have kept."""
        options, status = self.settings, self.run()
        assert status.reason == "completed", f"{options} did not finish: {status.reason}"
        (topic,) = status.topics
        assert topic.ledger["trained"] == options.total == len(self.trained_gids) == len(set(self.trained_gids)), "trained once, each"
        told = topic.consumers[TRAINER].replay
        assert told is not None
        assert (told.kept, told.kept_bytes, told.leased) == (0, 0, 0)
        assert told.replayed == self.replayed.total() == sum(int(event.data["replayed"]) for event in self.log.of("commit"))
        seen: Counter[int] = Counter()
        for event in self.log.of("replayed"):
            seen[event.gid] += 1
            assert event.data["times"] == seen[event.gid]
        assert seen == self.replayed
        assert not self.core._runtime.blocks.all().size, "every block is freed"


class DealtReplayedWorld(ReplayedWorld, DealtWorld):
    """The trainer takes as two ranks."""


class LossyAgainWorld(LossyWorld):
    """Shards die: nothing is handed out that lay there, what is replayed included."""

    def _look_at(self, taken: m.OkTaken) -> None:
        super()._look_at(taken)
        for buffer in taken.replayed.rows.columns:
            assert not any(self._is_lost(shard, block) for shard, block, *_ in m.places(buffer).tolist()), "nobody can read it"


class LossyReplayedWorld(ReplayedWorld, LossyAgainWorld): ...


class KeptReplayedWorld(DealtReplayedWorld, KeptWorld, LossyAgainWorld):
    """Everything at once: controller, shards and workers die, and the trainer takes as two ranks."""
