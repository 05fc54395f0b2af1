"""A desk whose trainer gets groups again, and what must hold of the store at any moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from samplers_desk import Hall, Who, topic

from transfer_queue import messages as m
from transfer_queue.controller.replays import Replays
from transfer_queue.messages import unpacked


def replaying(replay: m.Replay | None, *, rows: int = 1, train: m.Sampler | str = "in_order", **window: Any) -> m.TopicSpec:
    """tokens → judge, tokens → trainer, who gets groups again. A group has a block of a byte for its prompt, and one for each row's tokens."""
    spec = topic("in_order", rows=rows, train=train, **window)
    judge, trainer = spec.consumers
    return msgspec.structs.replace(spec, consumers=(judge, msgspec.structs.replace(trainer, replay=replay)))


class ReplayHall(Hall):
    def __init__(self, replay: m.Replay, **options: Any) -> None:
        super().__init__(replaying(replay, **options))

    @property
    def store(self) -> Replays:
        found: Replays = self.topic.replays[self.topic.schema.consumer("trainer")]
        return found

    @property
    def told(self) -> m.ReplayStatus:
        found = self.consumer("trainer").replay
        assert found is not None
        return found

    def part(self, limit: int = 100, who: Who | None = None) -> m.OkTaken:
        return self.take(who or self.trainer, limit=limit, step=self.topic.version)

    def rank(self, rank: int, limit: int = 2, who: Who | None = None) -> m.OkTaken:
        return self.take(who or self.trainer, limit=limit, rank=rank, step=self.topic.version)

    def step(self, versions: Sequence[int] | None = None) -> m.OkTaken:
        """One batch, made and trained. `versions`: of its groups."""
        self.fill([(version, 1) for version in versions or [self.topic.version] * self.spec.window.batch])
        taken = self.part()
        self.train([taken])
        return taken

    def lives(self, block: int) -> bool:
        return block in self.core.live_blocks(0)


def again(taken: m.OkTaken) -> list[int]:
    """Groups that are replayed with a lease."""
    return list(dict.fromkeys(row.gid for row in taken.replayed.rows))


def times(taken: m.OkTaken) -> dict[int, int]:
    return dict(zip(unpacked(taken.replayed.rows.gids).tolist(), unpacked(taken.replayed.times).tolist(), strict=True))


def blocks(rows: m.Rows) -> set[int]:
    return {piece.block for row in rows for piece in row.columns if piece is not None}
