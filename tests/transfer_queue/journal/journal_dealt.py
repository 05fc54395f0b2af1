"""A simulated run whose stages are served by samplers of somebody's own, and as ranks: its workers take parts of rounds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
from controller_world import World
from journal_kept import KeptWorld
from journal_lossy import LossyWorld

from transfer_queue import messages as m
from transfer_queue.controller.core import Core, CoreConfig
from transfer_queue.samplers import Candidates

RANKS = 2
WAIT_S = 1.0  # then a worker asks as another rank
MOODS = random.Random()


def moody(ready: Candidates, limit: int) -> Sequence[int]:
    """Asked again it says something else."""
    mood = MOODS.random()
    if mood < 0.1:
        raise ValueError(f"not now: {mood}")
    if mood < 0.2:
        return [0] * limit
    return MOODS.sample(range(len(ready)), min(limit, len(ready)))


MOODY = f"{__name__}:moody"


def dealt(name: str, **options: Any) -> m.Sampler:
    return m.Sampler(name, {"ranks": RANKS, **options})


class DealtWorld(World):
    """reward is served by a sampler of its own, all others are ranks."""

    def start(self, config: CoreConfig) -> Core:
        MOODS.seed(self.settings.seed)
        (topic,) = config.topics
        order = "same_version" if topic.window.policy == "drop" else "in_order"
        samplers = (MOODY, dealt("rank_aware", order=MOODY), dealt("length_balanced"), dealt("length_balanced", order=order))
        consumers = [msgspec.structs.replace(consumer, sampler=sampler) for consumer, sampler in zip(topic.consumers, samplers, strict=True)]
        self.config = msgspec.structs.replace(config, topics=[msgspec.structs.replace(topic, consumers=tuple(consumers))])
        return super().start(self.config)

    def call(self, actor: Any, request: m.Request, parked: int | None = None) -> m.Reply | None:
        if isinstance(request, m.Take) and request.consumer != "reward":
            request = msgspec.structs.replace(request, rank=self.rng.randrange(RANKS), wait_s=WAIT_S)
        return super().call(actor, request, parked)


class KeptDealtWorld(DealtWorld, KeptWorld, LossyWorld):
    """Everything at once: controller, shards and workers die."""
