"""The host cache: whole versions only, newest first, and never written under a reader."""

from __future__ import annotations

import threading

import pytest
import torch
from ce_helpers import bits, plain_weights, policy
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint_engine.cache import KEPT_S, HostCache, NoFreeSlot, ReservationOver
from checkpoint_engine.copy_out import copy_out
from checkpoint_engine.slot import Lease


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def put(cache: HostCache, version: int) -> None:
    cache.put(policy(version), plain_weights(version, tensors=2, numel=50))


def assert_reads(lease: Lease, version: int) -> None:
    for (_, got), (_, expected) in zip(lease.tensors(), plain_weights(version, tensors=2, numel=50), strict=True):
        assert bits(got) == bits(expected)


def test_version_zero_is_a_version() -> None:
    cache = HostCache()
    assert cache.latest() is None
    put(cache, 0)
    assert cache.latest() == policy(0)


def test_with_no_free_slot_the_weights_are_not_even_walked() -> None:
    cache = HostCache()
    put(cache, 0)
    held = cache.lease("slow", 10)
    assert held
    put(cache, 1)

    def walked() -> torch.Tensor:
        raise AssertionError("the generator was walked")

    with pytest.raises(NoFreeSlot, match="pending"):
        cache.put(policy(2), ((name, walked()) for name in ["a"]))
    assert_reads(held, 0)
    cache.release(held)
    put(cache, 2)
    assert cache.latest() == policy(2)


def test_a_reader_past_its_deadline_loses_the_slot_but_not_its_bytes() -> None:
    clock = FakeClock()
    cache = HostCache(clock=clock)
    put(cache, 0)
    slow = cache.lease("slow", 5)
    assert slow
    put(cache, 1)
    assert cache.reserve(policy(2)) is None
    clock.now = 5.0
    put(cache, 2)
    put(cache, 3)
    assert_reads(slow, 0)
    assert cache.release(slow) is False


def test_a_writer_that_was_taken_back_can_neither_complete_nor_touch_what_follows() -> None:
    cache = HostCache()
    dead = cache.reserve(policy(0))
    assert dead
    cache.abandon(dead, tainted=True)
    put(cache, 1)
    put(cache, 2)
    dead.arena.grow(400)
    dead.arena.array[:400] = 9
    for version in (1, 2):
        lease = cache.lease("reader", 5, policy(version))
        assert lease
        assert_reads(lease, version)
    with pytest.raises(ReservationOver):
        cache.complete(dead, copy_out(dead.arena, policy(0), []))


def test_a_generator_that_raises_leaves_the_old_version_and_a_free_slot() -> None:
    cache = HostCache()
    put(cache, 0)

    def failing() -> object:
        yield "a", torch.ones(3)
        raise RuntimeError("gather failed")

    with pytest.raises(RuntimeError, match="gather failed"):
        cache.put(policy(1), failing())  # type: ignore[arg-type]
    assert cache.latest() == policy(0)
    put(cache, 2)


def test_an_older_version_that_completes_late_is_not_served_over_a_newer_one() -> None:
    cache = HostCache(spare=2)
    late = cache.reserve(policy(1))
    put(cache, 2)
    assert late
    cache.complete(late, copy_out(late.arena, policy(1), []))
    assert cache.latest() == policy(2)


def test_a_recovered_trainers_version_counts_as_newer_than_a_rolled_back_one() -> None:
    cache = HostCache()
    put(cache, 7)
    cache.put(policy(3, epoch=1), [])
    assert cache.latest() == policy(3, epoch=1)


def test_waiting_for_a_slot_ends_when_a_reader_lets_go_or_at_its_deadline() -> None:
    cache = HostCache()
    put(cache, 0)
    held = cache.lease("slow", 60)
    assert held
    put(cache, 1)
    assert not cache.wait_free(0.05)
    threading.Timer(0.05, cache.release, [held]).start()
    assert cache.wait_free(5)
    short = cache.lease("short", 0.1)
    assert short
    put(cache, 2)
    assert cache.wait_free(5)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["put", "lease", "release", "time"]), st.integers(0, 3)), max_size=40), st.integers(1, 3))
def test_whatever_happens_readers_see_the_version_they_leased(steps: list[tuple[str, int]], spare: int) -> None:
    clock = FakeClock()
    cache = HostCache(spare, clock)
    leases: list[tuple[Lease, int]] = []
    version = -1
    for step, number in steps:
        if step == "put":
            try:
                put(cache, version + 1)
                version += 1
            except NoFreeSlot:
                assert len(leases) >= spare
        elif step == "lease" and version >= 0:
            lease = cache.lease("reader", number + 1.0)
            assert lease is not None
            assert lease.manifest.weights.version == version
            leases.append((lease, version))
        elif step == "release" and leases:
            cache.release(leases.pop(number % len(leases))[0])
        elif step == "time":
            clock.now += number
        for lease, leased_version in leases:
            assert_reads(lease, leased_version)
    cache.close()


def test_a_version_that_is_kept_stays_until_a_newer_one_is_there_and_then_for_a_while() -> None:
    clock = FakeClock()
    cache = HostCache(clock=clock)
    put(cache, 0)
    lease = cache.lease("engine", 5.0)
    assert lease is not None
    kept = lease.keep()
    assert kept is not None
    cache.release(lease)
    clock.now += 100 * KEPT_S
    assert cache.holds(kept), "nobody needs the slot of the newest version"
    put(cache, 1)
    clock.now += KEPT_S - 1
    assert cache.reserve(policy(2)) is None
    assert_reads(kept, 0)
    clock.now += 2
    reservation = cache.reserve(policy(2))
    assert reservation is not None
    reservation.arena.grow(4096)
    reservation.arena.array[:] = 255
    assert_reads(kept, 0)  # its memory is its own by now
    kept.release()
    kept.release()


def test_a_version_that_was_loaded_makes_room_as_soon_as_it_is_let_go() -> None:
    cache = HostCache()
    kept: Lease | None = None
    for version in range(6):
        put(cache, version)
        lease = cache.lease("engine", 5.0)
        assert lease is not None
        before, kept = kept, lease.keep()
        cache.release(lease)
        if before is not None:
            before.release()
        assert kept is not None
        assert_reads(kept, version)


def test_the_only_slot_is_kept_no_longer_than_any_lease_and_what_ended_cannot_be_kept() -> None:
    clock = FakeClock()
    cache = HostCache(spare=0, clock=clock)
    put(cache, 0)
    lease = cache.lease("engine", 5.0)
    assert lease is not None
    kept = lease.keep()
    assert kept is not None
    cache.release(lease)
    assert lease.keep() is None
    assert cache.reserve(policy(1)) is None
    clock.now += KEPT_S + 1
    assert cache.reserve(policy(1)) is not None
    assert_reads(kept, 0)
