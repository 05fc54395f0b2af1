"""What the members of a small run do, in one call each."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Protocol

import numpy as np
import queue_run as run

from transfer_queue import messages as m
from transfer_queue.client import QueueClient

WAIT_S = 10.0
INPUTS = ("prompt_ids", "item", "response_ids")


def read_all(stage: QueueClient, taken: m.OkTaken) -> None:
    """Every byte of what a stage was given is what was put."""
    keys = taken.rows.keys()
    read = stage.read(taken.rows, INPUTS, run.spec())
    assert [ids.tolist() for ids in read["prompt_ids"]] == [run.prompt(gid) for gid, _ in keys]
    assert [ids.tolist() for ids in read["response_ids"]] == [run.response(*key) for key in keys]
    assert list(read["item"]) == [b"item %d" % gid for gid, _ in keys]


def reward(stage: QueueClient, taken: m.OkTaken) -> list[int]:
    """Answer a lease; the gids that came too late."""
    keys = taken.rows.keys()
    values = np.array([run.reward(*key) for key in keys])
    return stage.write_back(run.TOPIC, "reward", taken.lease, keys, {"reward": values}).closed


def gids_of(taken: m.OkTaken) -> list[int]:
    found: list[int] = np.unique(m.unpacked(taken.rows.gids)).tolist()
    return found


class Queue(Protocol):
    """A running one."""

    def client(self, name: str) -> QueueClient: ...

    def status(self) -> m.StatusRecord: ...


def finish(queue: Queue, groups: int) -> list[int]:
    """Train so many more, looking at every byte; returns which."""
    trained: list[int] = []
    before = queue.status().topics[0].ledger["trained"]
    with ExitStack() as stack:
        rollout, stage, trainer = (stack.enter_context(queue.client(name)) for name in ("rollout-9", "stage-9", "trainer-9"))
        trainer.close_prompts(run.TOPIC, before + groups).result(WAIT_S)
        deadline = run.Deadline(30.0)
        while len(trained) < groups:
            deadline.check(f"only {trained} were trained")
            step = run.clock(trainer)
            leases = rollout.pull(run.TOPIC, step, 8, wait_s=0.0).result(WAIT_S).groups
            if leases:
                assert [ids.tolist() for ids in rollout.read_shared(leases, ["prompt_ids"], run.spec())["prompt_ids"]] == [
                    run.prompt(lease.gid) for lease in leases
                ]
                assert run.put_groups(rollout, leases, step) == []
            taken = stage.take(run.TOPIC, "reward", limit=100, wait_s=0.0).result(WAIT_S)
            if taken.lease >= 0:
                read_all(stage, taken)
                assert reward(stage, taken) == []
            batch = trainer.take(run.TOPIC, "trainer", limit=4, at_least=4, step=step, wait_s=0.1).result(WAIT_S)
            if batch.lease >= 0:
                read = trainer.read(batch.rows, ("prompt_ids", "response_ids", "logprobs", "reward"), run.spec())
                keys = batch.rows.keys()
                assert read["reward"].tolist() == [run.reward(*key) for key in keys]
                trainer.commit(run.TOPIC, "trainer", "policy", 0, step, [batch.lease]).result(WAIT_S)
                trained += gids_of(batch)
    return trained
