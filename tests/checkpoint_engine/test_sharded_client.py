"""A trainer of several ranks and its publisher: in step through publish, pending and refusal; and what a rank's death does to the others."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from multiprocessing.synchronize import Event

import pytest
import torch
import torch.distributed as dist
from ce_helpers import eventually, policy, running_publisher
from sharded_ranks import DIED, FORK, run_ranks, tiny_qwen
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

from checkpoint_engine.digest import weights_digest
from checkpoint_engine.publisher import Publisher
from checkpoint_engine.publisher_client import PublisherClient, PublishRefused
from checkpoint_engine.receiver import Receiver
from checkpoint_engine.sharded import ShardedClient, ShardedWalk, WalkAbandoned, WalkBroken
from checkpoint_engine.weights_id import WeightsId

TIMEOUT_S = 20.0


def step(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5).add_(0.25)


def expected_digest(steps: int) -> str:
    model = tiny_qwen()
    for _ in range(steps):
        step(model)
    return weights_digest((name, tensor) for name, tensor in model.state_dict().items() if name != "lm_head.weight")


def train(rank: int, endpoint: str, leased: Event, blocked: Event) -> tuple[list[object], str]:
    """(what each call returned and which version was pending then, digest of the last version)"""
    model = tiny_qwen()
    fully_shard(model, mesh=init_device_mesh("cpu", (4,)))
    client = PublisherClient(endpoint) if rank == 0 else None
    sharded = ShardedClient(ShardedWalk(model, timeout_s=TIMEOUT_S), client)
    seen: list[object] = [sharded.publish(policy(0), wait_s=5)]
    if client is not None:
        client.wait_published(policy(0), 5)
        assert leased.wait(10)
    for version in (1, 2, 3):
        step(model)
        seen.append((sharded.publish(policy(version), 5 if version == 1 else 0), sharded.pending))
    seen.append(sharded.flush(0.05))
    if client is not None:
        blocked.set()
    seen.append((sharded.flush(10), sharded.pending))
    with pytest.raises(PublishRefused if rank == 0 else WalkAbandoned):
        sharded.publish(WeightsId("another model", 0, 4), 5)
    seen.append((sharded.flush(), sharded.publish(policy(4), 5)))
    return seen, client.wait_published(policy(4), 5).digest if client is not None else ""


def read_slowly(publisher: Publisher, leased: Event, blocked: Event) -> None:
    """Hold version 0 until the trainer has found no slot."""
    lease = eventually(lambda: publisher._cache.lease("slow reader", 60))
    leased.set()
    blocked.wait(20)
    publisher._cache.release(lease)


def test_all_ranks_publish_in_step_and_receivers_get_the_digest_of_the_unsharded_model() -> None:
    leased, blocked = FORK.Event(), FORK.Event()
    with running_publisher(transport="pull") as publisher:
        reader = threading.Thread(target=read_slowly, args=(publisher, leased, blocked))
        reader.start()
        answers = run_ranks(4, train, publisher.endpoint, leased, blocked)
        reader.join(10)
        receiver = Receiver("late", publisher.endpoint)
        eventually(receiver.latest)
        with receiver.get_weights() as tensors:
            digest = weights_digest(tensors)
        receiver.close()
    pending = [True, (True, None), (False, policy(2)), (False, policy(3)), False, (True, None), (True, True)]
    assert [seen for seen, _ in answers] == [pending] * 4
    assert digest == answers[0][1] == expected_digest(3)


def lose_a_rank(rank: int, at: int) -> tuple[str, float]:
    """The root ends rank 2 when it has read `at` tensors; everybody tells what it saw, and after how many seconds."""
    mesh = init_device_mesh("cpu", (4,))
    state = {f"t{i}": DTensor.from_local(torch.full((64, 100), float(i)), mesh, [Shard(0)], run_check=False) for i in range(40)}
    pids = [torch.zeros(1, dtype=torch.int64) for _ in range(4)]
    dist.all_gather(pids, torch.tensor([os.getpid()]))
    walk = ShardedWalk(lambda: state, timeout_s=3.0)
    began = time.monotonic()
    try:
        for read, _ in enumerate(walk.tensors()):
            if read == at:
                os.kill(int(pids[2].item()), signal.SIGKILL)
                began = time.monotonic()
    except WalkBroken as error:
        return str(error), time.monotonic() - began
    return "", time.monotonic() - began


def test_a_rank_that_is_killed_in_the_middle_is_named_and_nobody_waits_longer_than_the_deadline() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    at = random.Random(seed).randrange(30)
    root, first, dead, third = run_ranks(4, lose_a_rank, at)
    assert dead == DIED
    assert "the part of rank 2 did not come" in root[0]
    assert root[1] < 2, "a killed peer is noticed at once by whoever talks to it"
    for text, took_s in (first, third):
        assert "rank 0 did not take this rank's part" in text
        assert took_s < 3 + 3
