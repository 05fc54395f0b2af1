"""verl's manager drives our engine: whoever joins or leaves, is killed or hangs, weights arrive whole and verified or not at all."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import checkpoint_engine.engine as engine_module
from checkpoint_engine.collective import GroupError
from checkpoint_engine.digest import DigestMismatch, weights_digest
from checkpoint_engine.walking import WalkAbandoned
from tests.verl.children import run

pytestmark = pytest.mark.verl


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="r") as folder:  # short: Ray's sockets lie in it
        done = run(str(Path(__file__).with_name("sync_run.py")), folder, limit_s=240)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def digests(found: dict[str, Any], name: str) -> list[tuple[int, str]]:
    """(step, what the bytes are those of) of every replica that is still there."""
    seeds = {digest: int(seed) for seed, digest in found["expected"].items()}
    return [(step, seeds.get(digest)) for step, digest, _ in found[name]["states"]]


def test_every_receiver_has_the_bytes_of_the_step_it_was_told(found: dict[str, Any]) -> None:
    assert digests(found, "first")[:2] == [(0, 0), (0, 0)]
    assert found["first"]["states"][2][2] == 0
    assert found["metrics"]["asyncflow/version"] == 0
    assert 0 < found["metrics"]["asyncflow/sync_s"] < 30
    assert found["asked"][:4] == ["abort_all_requests", "release_kv_cache", "resume_kv_cache", "resume_generation"]


def test_who_joins_is_in_the_next_sync_and_who_left_is_not(found: dict[str, Any]) -> None:
    assert digests(found, "joined") == [(1, 1)] * 3
    assert digests(found, "left") == [(1, 1), (2, 2), (2, 2)]


def test_a_step_that_is_sent_again_brings_its_new_bytes(found: dict[str, Any]) -> None:
    assert digests(found, "again")[1:] == [(2, 3), (2, 3)]


def test_a_gathering_that_takes_longer_than_a_peer_may_hang_is_waited_for(found: dict[str, Any]) -> None:
    assert found["slow"]["error"] == ""
    assert found["slow"]["took_s"] > found["timeout_s"]
    assert digests(found, "slow")[1:] == [(3, 4), (3, 4)]


@pytest.mark.parametrize(("event", "after", "steps"), [("killed", "after_kill", (3, 5)), ("stopped", "after_stop", (6, 8))])
def test_a_receiver_that_is_killed_or_hangs_ends_the_sync_in_time_and_the_next_one_works(
    found: dict[str, Any], event: str, after: str, steps: tuple[int, int]
) -> None:
    assert found[event]["error"] != ""
    assert found[event]["took_s"] < 2.0 + found["timeout_s"] + 5.0, "the walk, the time-out, and room for a busy machine"
    before, then = steps
    assert all(step in (before, 1, 6) for step, _ in digests(found, event)), "nobody has weights of a sync that failed"
    assert found[after]["error"] == ""
    in_it = [entry for entry in digests(found, after) if entry[0] == then]
    assert in_it
    assert {seed for _, seed in in_it} == {then + 1}


def engines(rollouts: int, **settings: Any) -> tuple[Any, list[Any]]:
    from checkpoint_engine.adapters.verl import AsyncFlowCheckpointEngine as Engine

    made = [Engine(4096, is_master=i == 0, host="127.0.0.1", **settings) for i in range(1 + rollouts)]
    first, second = Engine.build_topology(1, rollouts, [engine.prepare() for engine in made])
    arguments = [dict(zip(part, values, strict=True)) for part in (first, second) for values in zip(*part.values(), strict=True)]
    with ThreadPoolExecutor(len(made)) as pool:
        list(pool.map(lambda pair: pair[0].init_process_group(**pair[1]), zip(made, arguments, strict=True)))
    return made[0], made[1:]


def weights() -> list[tuple[str, torch.Tensor]]:
    return [("a", torch.arange(5000.0)), ("b", torch.ones(7, dtype=torch.bfloat16))]


async def take(engine: Any, into: list[Any], global_steps: int | None) -> None:
    async for name, tensor in engine.receive_weights(global_steps):
        into.append((name, tensor.clone()))


def sync(trainer: Any, rollout: Any, sent: int | None, told: int | None, walk: Any = None) -> tuple[Any, Any, list[Any]]:
    async def both() -> list[Any]:
        sends = trainer.send_weights(iter(weights()) if walk is None else walk, sent)
        return await asyncio.gather(sends, take(rollout, got, told), return_exceptions=True)

    got: list[Any] = []
    first, second = asyncio.run(both())
    for engine in (trainer, rollout):
        engine.finalize()
    return first, second, got


def test_nothing_is_yielded_of_bytes_that_are_not_what_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = engine_module.broadcast_buffer

    def flips_the_last_bit(group: Any, buffer: torch.Tensor, total_bytes: int, bucket_bytes: int) -> None:
        if group.rank == 0:
            buffer = buffer.clone()
            buffer[total_bytes - 1] ^= 1
        stock(group, buffer, total_bytes, bucket_bytes)

    trainer, (rollout,) = engines(1)
    monkeypatch.setattr(engine_module, "broadcast_buffer", flips_the_last_bit)
    _, error, got = sync(trainer, rollout, 3, 3)
    assert isinstance(error, DigestMismatch)
    assert got == []


def test_a_step_is_never_loaded_under_another_ones_number() -> None:
    trainer, (rollout,) = engines(1)
    _, error, got = sync(trainer, rollout, 3, 4)
    assert isinstance(error, ValueError)
    assert "global_steps = 4 was announced" in str(error)
    assert got == []


def test_version_0_is_a_version() -> None:
    trainer, (rollout,) = engines(1)
    metrics, error, got = sync(trainer, rollout, 0, 0)
    assert error is None
    assert metrics["asyncflow/version"] == 0
    assert weights_digest(got) == rollout.weights.digest == trainer.weights.digest == weights_digest(weights())


def test_a_walk_that_fails_is_told_to_the_rollouts_at_once() -> None:
    def fails() -> Iterator[tuple[str, torch.Tensor]]:
        yield weights()[0]
        raise RuntimeError("gather failed")

    trainer, (rollout,) = engines(1)
    first, second, got = sync(trainer, rollout, 1, 1, fails())
    assert str(first) == "gather failed"
    assert isinstance(second, WalkAbandoned)
    assert "gather failed" in str(second)
    assert got == []


def test_what_a_failed_sync_left_is_given_up_before_the_next() -> None:
    trainer, (rollout,) = engines(1, timeout_s=1.0)
    rollout.finalize()
    with pytest.raises(GroupError):
        asyncio.run(trainer.send_weights(iter([("a", torch.ones(200_000))]), 1))
    first = trainer.prepare()
    second = trainer.prepare()
    assert first.port != second.port, "notes of an older group would lead its successor to sockets that are gone"
    trainer.finalize()
