"""What is page-locked for a device, and when it is let go. The device's runtime is a record of what it was asked: no device was at hand."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from ce_helpers import plain_weights, policy, running_publisher

import checkpoint_engine.publisher_client as module
from checkpoint_engine.pinning import Pins, runtime_in_use
from checkpoint_engine.publisher_client import PublisherClient
from shared_arena import Arena


class Recorder:
    """A driver: it has to be given back exactly what it locked, while that is still mapped."""

    def __init__(self, refuses: bool = False) -> None:
        self.locked: dict[int, weakref.ref[np.ndarray]] = {}
        self.locks, self._refuses = 0, refuses

    def lock(self, memory: np.ndarray) -> bool:
        assert memory.ctypes.data not in self.locked
        if not self._refuses:
            self.locks += 1
            self.locked[memory.ctypes.data] = weakref.ref(memory)
        return not self._refuses

    def unlock(self, memory: np.ndarray) -> None:
        assert self.locked.pop(memory.ctypes.data)() is not None


def test_a_slot_is_locked_once_and_anew_after_it_grew_and_never_outlives_its_lock() -> None:
    driver, pins, arena = Recorder(), Pins(), Arena(5000)
    assert pins.hold(arena, driver)
    assert pins.hold(arena, driver)
    assert driver.locks == 1
    arena.grow(1 << 20)
    gc.collect()
    (old,) = driver.locked.values()
    assert old() is not None, "memory that the driver has locked stays mapped"
    assert pins.hold(arena, driver)
    gc.collect()
    assert old() is None
    assert (driver.locks, len(driver.locked)) == (2, 1)
    pins.close()
    assert not driver.locked


def test_without_a_device_or_where_the_system_refuses_slots_stay_ordinary_memory() -> None:
    pins = Pins()
    assert runtime_in_use() is None
    assert not pins.hold(Arena(100), None)
    assert not pins.hold(Arena(100), Recorder(refuses=True))
    assert not pins.hold(Arena(), Recorder())
    pins.close()


@pytest.mark.parametrize("spare", [1, 5])
def test_a_trainer_locks_each_slot_of_its_publisher_once_and_unlocks_what_the_publisher_gave_up(spare: int, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Recorder()
    monkeypatch.setattr(module, "runtime_in_use", lambda: driver)
    with running_publisher(transport="pull", spare=spare) as publisher:
        client = PublisherClient(publisher.endpoint)

        def publish(version: int) -> None:
            client.publish(policy(version), plain_weights(version), wait_s=5)
            client.wait_published(policy(version), 5)
            assert client.pinned

        readers = []
        for version in range(4 * spare):
            publish(version)
            readers.append(publisher._cache.lease("reader", 60))
            if len(readers) == spare + 1:  # so that all slots get their turn
                for reader in readers:
                    publisher._cache.release(reader)
                readers.clear()
        assert len(driver.locked) == spare + 1
        locks = driver.locks
        tainted = publisher._cache.lease("dead reader", 60)
        publisher._cache.release(tainted, tainted=True)
        publish(4 * spare)
        publish(4 * spare + 1)
        assert len(driver.locked) <= spare + 1
        assert driver.locks <= locks + 1, "one slot has other memory, the rest stayed locked and mapped"
        client.close()
        assert not driver.locked
