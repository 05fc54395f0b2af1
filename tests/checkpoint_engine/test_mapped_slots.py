"""Receivers on the publisher's host map its slots: one copy of a version in memory, never written over while anybody may read it."""

from __future__ import annotations

import threading

import pytest
import torch
from ce_helpers import Named, bits, eventually, odd_weights, plain_weights, policy, running_publisher
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint_engine import messages as m
from checkpoint_engine.cache import HostCache
from checkpoint_engine.copy_out import copy_out
from checkpoint_engine.loan import Loan
from checkpoint_engine.publisher import Publisher
from checkpoint_engine.publisher_client import PublisherClient
from checkpoint_engine.receiver import Receiver
from checkpoint_engine.slot import Lease
from shared_arena import Arena


def publish(client: PublisherClient, version: int, weights: Named | None = None) -> None:
    client.publish(policy(version), plain_weights(version) if weights is None else weights, wait_s=5)
    client.wait_published(policy(version), 5)


def wait_for(receiver: Receiver, version: int) -> None:
    eventually(lambda: (latest := receiver.latest()) is not None and latest.version >= version, what=f"{receiver.member} has {version}")


def content(held: Lease) -> list[tuple[str, object]]:
    return [(name, bits(tensor)) for name, tensor in held.tensors()]


def expected(weights: Named) -> list[tuple[str, object]]:
    return [(name, bits(tensor)) for name, tensor in weights]


def memory_of(publisher: Publisher) -> set[bytes]:
    return set(publisher._cache.nonces())


def test_receivers_of_the_same_host_read_the_publishers_own_memory_and_the_trainer_never_waits_for_them() -> None:
    with running_publisher(transport="pull") as publisher:
        client = PublisherClient(publisher.endpoint)
        receivers = [Receiver(f"r{i}", publisher.endpoint) for i in range(3)]
        publish(client, 0)
        for version in range(1, 8):
            for receiver in receivers:
                wait_for(receiver, version - 1)
                with receiver.get_weights() as held:
                    assert held.arena.nonce in memory_of(publisher)
                    assert content(held) == expected(plain_weights(version - 1))
            eventually(lambda: len(publisher._outlet._held) == len(receivers), what="the version before was given back")
            publish(client, version)
        assert (client.deferred, client.coalesced) == (0, 0)
        assert len(memory_of(publisher)) == 2, "the two slots it began with"
        for receiver in receivers:
            receiver.close()
        client.close()


def test_a_slot_that_is_being_loaded_blocks_the_version_and_not_the_trainer_and_the_version_comes_afterwards() -> None:
    with running_publisher(transport="pull") as publisher:
        client, receiver = PublisherClient(publisher.endpoint), Receiver("slow", publisher.endpoint, spare=1)
        publish(client, 0)
        wait_for(receiver, 0)
        with receiver.get_weights() as held:
            publish(client, 1)
            wait_for(receiver, 1)
            for version in (2, 3):
                client.publish(policy(version), lambda version=version: plain_weights(version))  # does not wait
                assert client.pending == policy(version)
            assert content(held) == expected(plain_weights(0))
        assert (client.deferred, client.coalesced) == (2, 1)
        assert client.wait_published(policy(3), 5).version == 3
        wait_for(receiver, 3)
        with receiver.get_weights() as held:
            assert content(held) == expected(plain_weights(3))
        receiver.close()
        client.close()


def test_a_loader_past_its_deadline_loses_the_slot_to_the_trainer_and_keeps_its_bytes() -> None:
    with running_publisher(transport="pull") as publisher:
        client, receiver = PublisherClient(publisher.endpoint), Receiver("hung", publisher.endpoint, spare=1)
        publish(client, 0)
        wait_for(receiver, 0)
        first = memory_of(publisher)
        with receiver.get_weights(lease_s=0.2) as held:
            publish(client, 1)
            wait_for(receiver, 1)
            client.publish(policy(2), plain_weights(2))
            assert client.pending == policy(2)
            assert client.wait_published(policy(2), 5).version == 2
            wait_for(receiver, 2)
            publish(client, 3)
            assert held.arena.nonce in first - memory_of(publisher), "the slot has other memory now"
            assert content(held) == expected(plain_weights(0))
        receiver.close()
        client.close()


def test_a_receiver_that_leaves_gives_its_slot_back_as_it_was() -> None:
    with running_publisher(transport="pull") as publisher:
        client = PublisherClient(publisher.endpoint)
        publish(client, 0)
        publish(client, 1)
        before = memory_of(publisher)
        for number in range(3):
            receiver = Receiver(f"r{number}", publisher.endpoint)
            wait_for(receiver, number + 1)
            receiver.close()
            eventually(lambda: not publisher._outlet._held)
            publish(client, number + 2)
        assert memory_of(publisher) == before, "warm pages stay warm"
        client.close()


LAYOUTS: list[Named] = [
    plain_weights(0),
    odd_weights(1),
    [],
    [("scalar", torch.tensor(float("nan")))],
    plain_weights(4, tensors=9, numel=70_000),
    plain_weights(5, tensors=1, numel=3),
]


@pytest.mark.parametrize("transport", ["pull", "collective"])
def test_versions_of_other_shapes_and_of_no_tensors_at_all_pass_through_the_same_slots(transport: str) -> None:
    with running_publisher(transport=transport, bucket_bytes=4096) as publisher:
        client = PublisherClient(publisher.endpoint)
        receivers = [Receiver(f"r{i}", publisher.endpoint, spare=i) for i in range(2)]
        eventually(lambda: len(publisher._fanout.members) == 2)
        for version, weights in enumerate(LAYOUTS):
            publish(client, version, weights)
            for receiver in receivers:
                wait_for(receiver, version)
                with receiver.get_weights() as held:
                    assert content(held) == expected(weights)
        for receiver in receivers:
            assert receiver.counters.failed == receiver.counters.corrupt == 0
            receiver.close()
        client.close()


def test_a_single_slot_is_written_over_once_its_version_was_read_and_a_newer_mapping_replaces_it_at_any_time() -> None:
    cache, lender = HostCache(spare=0), Lender()
    cache.put(policy(0), plain_weights(0, 1, 10))
    assert cache.reserve(policy(1)) is None, "or a slow reader would never find a whole version"
    loan, arena = lender.lend(2)
    assert cache.adopt(copy_out(Arena(), policy(2), plain_weights(2, 1, 10)), arena, loan)
    held = cache.lease("r", 60)
    assert held
    assert content(held) == expected(plain_weights(2, 1, 10))
    assert cache.reserve(policy(3)) is None
    cache.release(held)
    cache.put(policy(3), plain_weights(3, 1, 10))
    assert cache.latest() == policy(3)
    assert lender.returned == [(loan, False)]


def test_a_receiver_with_a_single_slot_takes_a_version_that_came_while_it_loaded_once_it_has_loaded() -> None:
    with running_publisher(bucket_bytes=4096) as publisher:
        client, receiver = PublisherClient(publisher.endpoint), Receiver("lean", publisher.endpoint, spare=0)
        eventually(lambda: len(publisher._fanout.members) == 1)
        publish(client, 0)
        wait_for(receiver, 0)
        with receiver.get_weights() as held:
            publish(client, 1)
            eventually(lambda: receiver.counters.drained)
            assert content(held) == expected(plain_weights(0))
        wait_for(receiver, 1)
        with receiver.get_weights() as held:
            assert content(held) == expected(plain_weights(1))
        receiver.close()
        client.close()


def test_a_lease_lives_as_long_as_its_reader_makes_progress_and_no_longer() -> None:
    clock = [0.0]
    cache = HostCache(clock=lambda: clock[0])
    sent: list[m.FromPublisher] = []
    from checkpoint_engine.outlet import LEASE_S, Outlet

    outlet = Outlet(cache, lambda identity, record, *frames: sent.append(record))
    for version in range(2):
        cache.put(policy(version), plain_weights(version))
        outlet.pull(b"i", m.Pull(member="slow", lease_s=LEASE_S))
    offers = [record for record in sent if isinstance(record, m.Offer)]
    for _ in range(20):  # of the older version: 160 s, far beyond one lease
        clock[0] += LEASE_S * 0.8
        outlet.fetch(b"i", m.Fetch(lease=offers[0].lease, offset=0, nbytes=64))
        assert isinstance(sent[-1], m.Chunk)
        assert cache.reserve(policy(9)) is None
    clock[0] += LEASE_S
    assert cache.reserve(policy(9)) is not None
    outlet.fetch(b"i", m.Fetch(lease=offers[0].lease, offset=0, nbytes=64))
    assert isinstance(sent[-1], m.Refused)
    outlet.renew(b"i", m.Renew(lease=offers[0].lease, lease_s=LEASE_S))
    assert isinstance(sent[-1], m.Lapsed)


def test_leases_of_another_publisher_mean_nothing_here() -> None:
    numbers = set()
    for _ in range(2):
        cache, sent = HostCache(), []
        cache.put(policy(0), [])
        from checkpoint_engine.outlet import Outlet

        Outlet(cache, lambda identity, record, *frames, sent=sent: sent.append(record)).pull(b"i", m.Pull(member="r", lease_s=5.0))
        numbers.add(sent[0].lease)
    assert len(numbers) == 2


class Lender:
    """Another cache, as its borrower sees it: what came back, and how."""

    def __init__(self) -> None:
        self.returned: list[tuple[Loan, bool]] = []
        self.lent: dict[Loan, int] = {}

    def lend(self, version: int) -> tuple[Loan, Arena]:
        arena = Arena()
        copy_out(arena, policy(version), plain_weights(version, 1, 10))
        loan = Loan(version, lambda loan, tainted: self.returned.append((loan, tainted)))
        self.lent[loan] = version
        return loan, arena


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["adopt", "put", "lease", "release", "time"]), st.integers(0, 3)), max_size=40), st.integers(0, 2))
def test_a_loan_goes_back_once_when_unused_and_tainted_if_a_late_reader_may_still_be_there(steps: list[tuple[str, int]], spare: int) -> None:
    now = [0.0]
    cache, lender = HostCache(spare, lambda: now[0]), Lender()
    held: list[tuple[Lease, int]] = []
    for version, (step, number) in enumerate(steps):
        if step == "adopt":
            loan, arena = lender.lend(version)
            manifest = copy_out(Arena(), policy(version), plain_weights(version, 1, 10))
            if not cache.adopt(manifest, arena, loan):
                del lender.lent[loan]
        elif step == "put" and (reservation := cache.reserve(policy(version))) is not None:
            cache.complete(reservation, copy_out(reservation.arena, policy(version), plain_weights(version, 1, 10)))
        elif step == "lease" and (lease := cache.lease("r", number + 0.5)) is not None:
            held.append((lease, lease.weights.version))
        elif step == "release" and held:
            cache.release(held.pop(number % len(held))[0])
        elif step == "time":
            now[0] += number
        needed = [loan for loan, _ in cache.loans()]
        back = dict(lender.returned)
        assert len(back) == len(lender.returned), "given back once"
        assert set(needed) | set(back) == set(lender.lent)
        for lease, leased in held:
            assert content(lease) == expected(plain_weights(leased, 1, 10))
            for loan, tainted in lender.returned:
                assert lender.lent[loan] != leased or tainted, "somebody may still read there"
    cache.close()
    for lease, _ in held:
        cache.release(lease)
    assert len(lender.returned) == len(lender.lent)


def test_waiting_for_a_version_ends_when_a_mapped_reader_lets_go() -> None:
    """The end of a drained pipeline: the last version found no slot, and nothing but its reader's end can make room."""
    with running_publisher(transport="pull") as publisher:
        client, receiver = PublisherClient(publisher.endpoint), Receiver("slow", publisher.endpoint, spare=1)
        publish(client, 0)
        wait_for(receiver, 0)
        loading, loaded = threading.Event(), threading.Event()

        def load() -> None:
            with receiver.get_weights():
                loading.set()
                loaded.wait(10)

        loader = threading.Thread(target=load)
        loader.start()
        assert loading.wait(5)
        publish(client, 1)
        wait_for(receiver, 1)
        client.publish(policy(2), plain_weights(2))
        assert not client.flush(0.05)
        threading.Timer(0.1, loaded.set).start()
        assert client.wait_published(policy(2), 5).version == 2
        wait_for(receiver, 2)
        loader.join(5)
        receiver.close()
        client.close()
