"""What the members of a small run do, in one call each."""

from __future__ import annotations

import numpy as np
import queue_run as run

from transfer_queue import messages as m
from transfer_queue.client import QueueClient

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
