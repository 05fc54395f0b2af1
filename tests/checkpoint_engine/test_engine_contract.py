"""The contract with verl's method meanings, step by step as an orchestrator would drive it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from ce_helpers import bits, eventually, odd_weights, open_files, plain_weights, policy, resident_mib, settled, threads

from checkpoint_engine.collective import GroupError
from checkpoint_engine.digest import weights_digest
from checkpoint_engine.engine import CollectiveEngine


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
