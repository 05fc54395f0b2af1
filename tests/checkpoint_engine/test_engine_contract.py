"""The contract with verl's method meanings, step by step as an orchestrator would drive it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from ce_helpers import bits, odd_weights, policy

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
