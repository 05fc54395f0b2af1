"""verl's replay buffers that look every 0.05 s, not every 2 s: with steps of a second, the time of a run would be that of a sleep.

`trainer.v1.sampler.custom_sampler.{path,name}`; this file is loaded by its path, in the trainer.
"""

from __future__ import annotations

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from tests.verl.timed_queue import mark

POLL_S = 0.05


class Quick(ReplayBuffer):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, poll_interval=POLL_S)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        mark(global_steps)
        return super().sample(global_steps, partition_id, batch_size)


class QuickAsync(ReplayBufferAsync):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, poll_interval=POLL_S)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        mark(global_steps)
        return super().sample(global_steps, partition_id, batch_size)
