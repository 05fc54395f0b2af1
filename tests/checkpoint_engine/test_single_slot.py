"""The default of a receiver: one model in its memory beside the loaded one. The next version is written over it, whole or not at all, and who needs
weights meanwhile waits for them."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from ce_helpers import bits, eventually, plain_weights, policy, running_publisher

from checkpoint_engine.cache import HostCache
from checkpoint_engine.publisher import Publisher
from checkpoint_engine.publisher_client import PublisherClient
from checkpoint_engine.receiver import NotInCache, Receiver
from checkpoint_engine.slot import Lease
from checkpoint_engine.weights_id import WeightsId


def content(held: Lease) -> list[tuple[str, object]]:
    return [(name, bits(tensor)) for name, tensor in held]


def expected(version: int) -> list[tuple[str, object]]:
    return [(name, bits(tensor)) for name, tensor in plain_weights(version)]


def publish(client: PublisherClient, version: int) -> None:
    client.publish(policy(version), plain_weights(version), wait_s=5)
    client.wait_published(policy(version), 5)


def arrive(receiver: Receiver, version: int) -> None:
    eventually(lambda: (latest := receiver.latest()) is not None and latest.version == version, what=f"version {version}")


def load(receiver: Receiver, version: int) -> None:
    with receiver.get_weights() as held:
        assert (held.weights.version, content(held)) == (version, expected(version))


def flip_byte(publisher: Publisher) -> None:
    lease = publisher._cache.lease("test", 5)
    assert lease is not None
    lease.arena.array[5000] ^= np.uint8(1)
    publisher._cache.release(lease)


def test_versions_come_by_broadcast_one_over_the_other_into_the_same_memory() -> None:
    with running_publisher(bucket_bytes=4096) as publisher:
        client, receiver = PublisherClient(publisher.endpoint), Receiver("r", publisher.endpoint)
        eventually(lambda: len(publisher._fanout.members) == 1)
        memory = set()
        for version in range(6):
            publish(client, version)
            arrive(receiver, version)
            load(receiver, version)
            memory.add(receiver._cache.nonces())
        eventually(lambda: receiver.counters.by_broadcast == 6)
        assert len(memory) == 1
        assert len(next(iter(memory))) == 1, "one model"
        receiver.close()
        client.close()


def test_a_version_that_nobody_has_read_is_not_written_over_and_the_next_is_pulled() -> None:
    with running_publisher(bucket_bytes=4096) as publisher:
        client, receiver = PublisherClient(publisher.endpoint), Receiver("r", publisher.endpoint)
        eventually(lambda: len(publisher._fanout.members) == 1)
        publish(client, 0)
        arrive(receiver, 0)
        with receiver.get_weights() as held:
            publish(client, 1)
            eventually(lambda: receiver.counters.drained == 1, what="the broadcast went by")
            assert content(held) == expected(0)
        arrive(receiver, 1)
        load(receiver, 1)
        receiver.close()
        client.close()


def test_who_is_started_anew_while_a_version_arrives_waits_for_it_and_never_sees_a_half() -> None:
    """The version is damaged on its way again and again: what is in the slot then is nobody's, until it is repaired."""

    def damage(weights: WeightsId) -> None:
        if weights.version == 1:
            flip_byte(publisher)

    with running_publisher(bucket_bytes=4096, on_published=damage) as publisher:
        client, receiver = PublisherClient(publisher.endpoint), Receiver("r", publisher.endpoint)
        eventually(lambda: len(publisher._fanout.members) == 1)
        publish(client, 0)
        arrive(receiver, 0)
        load(receiver, 0)
        eventually(lambda: receiver.counters.receive_s > 0)
        publish(client, 1)
        eventually(lambda: receiver.counters.corrupt >= 2, what="the broadcast and a pull notice")
        assert receiver.latest() is None, "version 0 was written over"
        with pytest.raises(NotInCache), receiver.get_weights():
            pass
        assert receiver._cache.await_lease("engine", 5.0, policy(0), 0.1) is None
        threading.Timer(0.3, flip_byte, [publisher]).start()
        held = receiver._cache.await_lease("engine", 5.0, policy(0), 10.0)
        assert held is not None
        assert (held.weights.version, content(held)) == (1, expected(1))
        held.release()
        receiver.close()
        client.close()


def test_an_empty_slot_takes_the_same_version_again_and_none_that_is_older() -> None:
    with running_publisher(transport="pull") as publisher:
        client, receiver = PublisherClient(publisher.endpoint), Receiver("r", publisher.endpoint)
        publish(client, 0)
        publish(client, 1)
        arrive(receiver, 1)
        load(receiver, 1)
        reservation = eventually(lambda: receiver._cache.reserve(policy(2)))
        assert receiver.latest() is None
        assert receiver._is_news(policy(1))
        assert not receiver._is_news(policy(0)), "what an engine has loaded is newer"
        receiver._cache.abandon(reservation, tainted=False)
        receiver.want(policy(1))
        arrive(receiver, 1)
        load(receiver, 1)
        receiver.close()
        client.close()


def test_a_wait_for_weights_ends_with_them_at_its_deadline_or_with_the_cache() -> None:
    cache = HostCache(spare=0)
    began = time.monotonic()
    assert cache.await_lease("engine", 5.0, policy(0), 0.2) is None
    assert time.monotonic() - began >= 0.2
    cache.put(policy(3), plain_weights(3))
    assert cache.await_lease("engine", 5.0, policy(4), 0.1) is None, "it is older than what served"
    lease = cache.await_lease("engine", 5.0, policy(2), 0.0)
    assert lease is not None
    assert lease.weights.version == 3
    lease.release()
    threading.Timer(0.2, cache.close).start()
    began = time.monotonic()
    assert cache.await_lease("engine", 5.0, policy(4), 20.0) is None
    assert time.monotonic() - began < 10
