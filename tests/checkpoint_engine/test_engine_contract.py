"""The contract with verl's method meanings, step by step as an orchestrator would drive it."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ce_helpers import bits, eventually, odd_weights, open_files, plain_weights, policy, resident_mib, settled, threads
from sharded_ranks import FORK, run_ranks
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from checkpoint_engine.collective import GroupError
from checkpoint_engine.digest import weights_digest
from checkpoint_engine.engine import CollectiveEngine
from checkpoint_engine.sharded import ShardedWalk
from checkpoint_engine.walking import WalkAbandoned


def form(trainers: list[CollectiveEngine], rollouts: list[CollectiveEngine]) -> None:
    engines = trainers + rollouts
    first, second = CollectiveEngine.build_topology(len(trainers), len(rollouts), [engine.prepare() for engine in engines])
    arguments = [dict(zip(part, values, strict=True)) for part in (first, second) for values in zip(*part.values(), strict=True)]
    with ThreadPoolExecutor(len(engines)) as pool:
        list(pool.map(lambda pair: pair[0].init_process_group(**pair[1]), zip(engines, arguments, strict=True)))


async def receive(engine: CollectiveEngine) -> list[tuple[str, object]]:
    return [(name, bits(tensor)) async for name, tensor in engine.receive_weights()]


async def cached(engine: CollectiveEngine) -> list[tuple[str, object]]:
    return [(name, bits(tensor)) async for name, tensor in engine.get_weights()]


def make(master: bool) -> CollectiveEngine:
    return CollectiveEngine(bucket_bytes=4096, is_master=master, timeout_s=10.0)


def test_a_sync_brings_every_tensor_to_every_rollout_and_every_trainer_rank_walks() -> None:
    trainers, rollouts = [make(True), make(False)], [make(False), make(False)]
    walked = [0, 0]

    def walk(rank: int, seed: int) -> Iterator[tuple[str, torch.Tensor]]:
        for item in odd_weights(seed):
            walked[rank] += 1
            yield item

    async def sync(seed: int) -> None:
        sends = [trainer.send_weights(walk(rank, seed), policy(seed)) for rank, trainer in enumerate(trainers)]
        results = await asyncio.gather(*sends, *(receive(rollout) for rollout in rollouts))
        assert results[0].digest == weights_digest(odd_weights(seed))
        expected = [(name, bits(tensor)) for name, tensor in odd_weights(seed)]
        for got, rollout in zip(results[2:], rollouts, strict=True):
            assert got == expected
            assert await cached(rollout) == expected
        assert walked[0] == walked[1]

    form(trainers, rollouts)
    for seed in range(3):
        asyncio.run(sync(seed))
    for engine in trainers + rollouts:
        engine.finalize()
    assert asyncio.run(cached(rollouts[0]))[0][0] == "strided"
    with pytest.raises(GroupError, match="init_process_group"):
        asyncio.run(receive(rollouts[0]))


def stops_at(rank: int, stop: int, walked: list[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """On rank 0 the tensor of number `stop` has a name that was there before: the copy is refused."""
    for number, (_, tensor) in enumerate(plain_weights(3, tensors=6, numel=300)):
        walked[rank] += 1
        yield f"t{min(number, stop - 1) if rank == 0 and number == stop else number}", tensor


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_where_rank_0_does_not_take_its_copy_every_trainer_rank_walks_to_the_end_and_says_so(stop: int) -> None:
    trainers, walked = [make(True), make(False), make(False)], [0, 0, 0]
    rollout = make(False)
    form(trainers, [rollout])

    async def send() -> list[object]:
        sends = (trainer.send_weights(stops_at(rank, stop, walked), policy(3)) for rank, trainer in enumerate(trainers))
        return list(await asyncio.gather(*sends, receive(rollout), return_exceptions=True))

    first, *others = asyncio.run(send())
    assert isinstance(first, ValueError)
    assert [type(other) for other in others] == [WalkAbandoned] * 3
    assert all("yielded twice" in str(other) for other in others)
    assert walked == [6, 6, 6], "whoever stops walking leaves the others in a collective"

    async def sync() -> list[object]:
        sends = (trainer.send_weights(iter(plain_weights(4)), policy(4)) for trainer in trainers)
        return list(await asyncio.gather(*sends, receive(rollout)))

    assert asyncio.run(sync())[3] == [(name, bits(tensor)) for name, tensor in plain_weights(4)]
    for engine in [*trainers, rollout]:
        engine.finalize()


def test_a_rollout_waits_for_a_walk_that_takes_longer_than_the_groups_timeout() -> None:
    """Gathering a large model takes longer than a peer may hang."""
    trainer, rollout = CollectiveEngine(4096, True, timeout_s=0.5), CollectiveEngine(4096, timeout_s=0.5)

    def slowly() -> Iterator[tuple[str, torch.Tensor]]:
        for item in plain_weights(1):
            threading.Event().wait(0.4)
            yield item

    def send() -> object:
        return asyncio.run(trainer.send_weights(slowly(), policy(1)))

    form([trainer], [rollout])
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send)
        assert asyncio.run(receive(rollout)) == [(name, bits(tensor)) for name, tensor in plain_weights(1)]
        assert sent.result(10).digest == weights_digest(plain_weights(1))
    trainer.finalize()
    rollout.finalize()


def test_a_rollout_that_gives_up_while_it_waits_for_the_walk_is_through_at_once() -> None:
    trainer, rollout = make(True), make(False)
    form([trainer], [rollout])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: asyncio.run(receive(rollout)))
        threading.Event().wait(0.3)
        began = time.monotonic()
        rollout.finalize()
        with pytest.raises(GroupError, match="given up here"):
            waiting.result(5)
        assert time.monotonic() - began < 3, "not the time that a copy may take"
    trainer.finalize()


def test_a_walk_that_raises_on_rank_0_is_its_error_and_the_others_are_told() -> None:
    def fails(rank: int) -> Iterator[tuple[str, torch.Tensor]]:
        yield "a", torch.ones(3)
        if rank == 0:
            raise RuntimeError("gather failed")
        yield "b", torch.ones(3)

    trainers, rollout = [make(True), make(False)], make(False)
    form(trainers, [rollout])

    async def send() -> list[object]:
        return list(await asyncio.gather(*(t.send_weights(fails(r), policy(0)) for r, t in enumerate(trainers)), return_exceptions=True))

    first, second = asyncio.run(send())
    assert str(first) == "gather failed"
    assert isinstance(second, WalkAbandoned)
    assert "gather failed" in str(second)
    for engine in [*trainers, rollout]:
        engine.finalize()


def test_a_receiver_that_is_gone_is_an_error_of_rank_0_and_the_others_know_that_the_copy_was_taken() -> None:
    trainers, rollouts = [CollectiveEngine(4096, master, timeout_s=1.0) for master in (True, False)], [make(False), make(False)]
    form(trainers, rollouts)
    rollouts[1].finalize()

    async def send() -> list[object]:
        sends = (trainer.send_weights(iter(plain_weights(0, 8, 200_000)), policy(0)) for trainer in trainers)
        return list(await asyncio.gather(*sends, receive(rollouts[0]), return_exceptions=True))

    first, second, received = asyncio.run(send())
    assert isinstance(first, GroupError)
    assert second == policy(0)
    assert isinstance(received, GroupError)
    assert asyncio.run(cached(trainers[0])) == [(name, bits(tensor)) for name, tensor in plain_weights(0, 8, 200_000)]
    for engine in [*trainers, rollouts[0]]:
        engine.finalize()


def test_a_trainer_rank_that_waits_for_rank_0_hears_at_once_when_that_is_killed() -> None:
    ours, theirs = FORK.Pipe()

    def lead() -> None:
        master = make(True)
        theirs.send(master.prepare())
        threading.Event().wait(60)

    process = FORK.Process(target=lead)
    process.start()
    metadata = ours.recv()
    follower = make(False)
    follower.init_process_group(-1, 2, metadata)
    timer = threading.Timer(0.3, process.kill)
    timer.start()
    began = time.monotonic()
    with pytest.raises(GroupError, match="rank 0 ended, was killed"):
        asyncio.run(follower.send_weights(iter(plain_weights(0)), policy(0)))
    assert time.monotonic() - began < 20, "long before the time that a copy may take"
    process.join(10)
    follower.finalize()


def sync_sharded(rank: int) -> tuple[str, object]:
    """Ranks 0 and 1 train, sharded; rank 2 receives. The same walk serves the engine and `ShardedClient`."""
    trainers = dist.new_group([0, 1])
    engine = make(rank == 0)
    told: list[Any] = [None] * 3
    dist.all_gather_object(told, engine.prepare())
    first, second = CollectiveEngine.build_topology(2, 1, told)
    arguments = [dict(zip(part, values, strict=True)) for part in (first, second) for values in zip(*part.values(), strict=True)][rank]
    engine.init_process_group(**arguments)
    if rank == 2:
        got = asyncio.run(receive(engine))
        engine.finalize()
        return "received", got
    mesh = DeviceMesh("cpu", [0, 1])
    state = {f"t{i}": DTensor.from_local(torch.full((8, 100), float(i)), mesh, [Shard(0)], run_check=False) for i in range(5)}
    walk = ShardedWalk(lambda: state, group=trainers, timeout_s=20.0)
    label = asyncio.run(engine.send_weights(walk, policy(7)))
    refused = ""
    try:
        asyncio.run(engine.send_weights(ShardedWalk(lambda: state, group=trainers, root=1, timeout_s=20.0), policy(8)))
    except ValueError as error:
        refused = str(error)
    engine.finalize()
    return refused[:45], (label.version, label.digest)


def test_a_sharded_walk_goes_through_the_engine_with_every_rank_in_step() -> None:
    expected = [(f"t{i}", bits(torch.full((16, 100), float(i)))) for i in range(5)]
    first, second, third = run_ranks(3, sync_sharded)
    wrong_root = "the walk's root is not trainer rank 0 (here: "
    assert first == (wrong_root, (7, weights_digest((f"t{i}", torch.full((16, 100), float(i))) for i in range(5))))
    assert second == (wrong_root, (7, ""))
    assert third == ("received", expected)


def test_a_topology_without_a_master_is_refused() -> None:
    with pytest.raises(ValueError, match="is_master"):
        CollectiveEngine.build_topology(1, 1, [make(False).prepare()])


def test_an_empty_cache_says_so() -> None:
    with pytest.raises(LookupError, match="not in the cache"):
        asyncio.run(cached(make(False)))


@pytest.mark.e2e
def test_a_thousand_syncs_each_with_a_group_of_its_own_leave_nothing_behind() -> None:
    trainer, rollout = make(True), make(False)

    async def sync(version: int) -> None:
        weights = plain_weights(version % 7, tensors=3, numel=3000)
        _, got = await asyncio.gather(trainer.send_weights(iter(weights), policy(version)), receive(rollout))
        assert got == [(name, bits(tensor)) for name, tensor in weights]

    def cycle(version: int) -> None:
        form([trainer], [rollout])
        asyncio.run(sync(version))
        trainer.finalize()
        rollout.finalize()

    for version in range(100):
        cycle(version)
    gc.collect()
    before, memory = settled(), resident_mib()
    for version in range(100, 1000):
        cycle(version)
    gc.collect()
    eventually(lambda: open_files() <= before[0] and threads() <= before[1], what=f"{open_files()}, {threads()} go back to {before}")
    assert resident_mib() < memory + 8
