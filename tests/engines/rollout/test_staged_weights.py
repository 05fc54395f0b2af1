"""What vLLM's processes read weights from, without vLLM: each load sees its own version only, and a model that computes with that memory is found."""

from __future__ import annotations

import threading

import pytest
import torch

from asyncflow.contracts.weights import WeightsId
from asyncflow.engines.rollout.vllm.staging import Staging, overlapping, read_staged
from checkpoint_engine.cache import HostCache
from checkpoint_engine.copy_out import copy_out
from shared_arena import Arena


def weights(version: int) -> WeightsId:
    return WeightsId("policy", 0, version)


def network() -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64))
    model.requires_grad_(False)
    return model


def test_a_loader_that_changes_what_it_reads_spoils_neither_the_slot_nor_a_later_version_in_it() -> None:
    slot = Arena(user="weights")
    for version in range(3):
        manifest = copy_out(slot, weights(version), [("a", torch.full((5000,), float(version))), ("b", torch.ones(3))])
        source = Arena.attach(slot.descriptor(), private=True)
        read = dict(read_staged(manifest, source))
        assert read["a"].eq(float(version)).all()
        read["a"].neg_()
        assert Arena.attach(slot.descriptor()).array[: 4 * 5000].view("float32").min() == version
        source.close()


def test_parameters_and_buffers_that_are_views_of_what_was_read_are_named_and_copies_are_not() -> None:
    model, slot = network(), Arena(user="weights")
    manifest = copy_out(slot, weights(0), model.state_dict().items())
    source = Arena.attach(slot.descriptor(), private=True)
    read = dict(read_staged(manifest, source))
    model.load_state_dict(read)
    assert overlapping(model, source) == []
    model[0].bias.data = read["0.bias"]
    model[1].running_var = read["1.running_var"][3:]
    assert overlapping(model, source) == ["0.bias", "1.running_var"]


def put(cache: HostCache, version: int) -> None:
    cache.put(weights(version), [("a", torch.full((5000,), float(version)))])


def load(staging: Staging, cache: HostCache) -> None:
    """As the engine does with what its worker holds for the load."""
    lease = cache.lease("rollout-0", 30.0)
    assert lease is not None
    staging.serve(staging.stage(lease.weights, lease))
    lease.release()


def started_with(staging: Staging, wait_s: float = 0.0) -> tuple[int, float, float]:
    """By a new engine: the label, and the smallest and the largest value it reads."""
    with staging.again(wait_s) as staged:
        assert staged is not None
        ((_, tensor),) = staged.tensors()
        staging.serve(staged)
        return staged.weights.version, float(tensor.min()), float(tensor.max())


def test_with_two_slots_an_engine_starts_anew_with_what_served_whatever_came_since() -> None:
    cache, staging = HostCache(spare=1), Staging()
    put(cache, 0)
    load(staging, cache)
    put(cache, 1)
    assert started_with(staging) == (0, 0.0, 0.0)
    load(staging, cache)
    assert started_with(staging) == (1, 1.0, 1.0)
    staging.close()


def test_with_one_slot_nothing_is_held_after_a_load_and_an_engine_starts_anew_with_the_newest() -> None:
    cache, staging = HostCache(spare=0), Staging()
    with staging.again(0.0) as staged:
        assert staged is None, "nothing was loaded yet"
    for version in range(3):
        put(cache, version)  # raises NoFreeSlot where the one before is held
        load(staging, cache)
        assert len({cache.nonces()}) == 1
    assert started_with(staging) == (2, 2.0, 2.0)
    put(cache, 3)
    assert started_with(staging) == (3, 3.0, 3.0)
    assert staging.loaded == weights(3)
    put(cache, 4)
    staging.close()


def test_with_one_slot_an_engine_that_starts_anew_waits_for_the_version_that_is_on_its_way() -> None:
    cache, staging = HostCache(spare=0), Staging()
    put(cache, 0)
    load(staging, cache)
    reservation = cache.reserve(weights(1))
    assert reservation is not None
    with pytest.raises(TimeoutError, match=r"no weights as new as policy@0\.0.* came within 0\.1 s"), staging.again(0.1):
        pass

    def arrive() -> None:
        cache.complete(reservation, copy_out(reservation.arena, weights(1), [("a", torch.full((5000,), 1.0))]))

    timer = threading.Timer(0.2, arrive)
    timer.start()
    assert started_with(staging, 20.0) == (1, 1.0, 1.0)
    timer.join()
    staging.close()


def test_what_comes_from_no_host_cache_stays_until_its_successor_serves() -> None:
    staging = Staging()
    for version in range(3):
        staging.serve(staging.stage(weights(version), [("a", torch.full((50,), float(version)))]))
        unfit = staging.stage(weights(9), [("a", torch.full((50,), 9.0))])
        unfit.let_go()
        assert started_with(staging) == (version, float(version), float(version))
    staging.close()
