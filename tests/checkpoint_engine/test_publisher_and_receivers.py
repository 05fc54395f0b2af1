"""Weights from a trainer through the publisher to whoever follows: whole, verified, newest."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
import torch
import zmq
from ce_helpers import bits, eventually, odd_weights, open_files, plain_weights, policy, running_publisher, settled, threads

from checkpoint_engine import messages as m
from checkpoint_engine.digest import weights_digest
from checkpoint_engine.manifest import Manifest
from checkpoint_engine.publisher import Publisher
from checkpoint_engine.publisher_client import PublisherClient, PublishRefused
from checkpoint_engine.receiver import NotInCache, Receiver
from checkpoint_engine.weights_id import WeightsId


def publish(client: PublisherClient, version: int, tensors: int = 4, numel: int = 8192) -> WeightsId:
    client.publish(policy(version), plain_weights(version, tensors, numel), wait_s=5)
    return client.wait_published(policy(version), 5)


def has(receiver: Receiver, weights: WeightsId) -> bool:
    latest = receiver.latest()
    return latest is not None and not latest < weights


def content(receiver: Receiver, weights: WeightsId | None = None) -> list[tuple[str, object]]:
    with receiver.get_weights(weights) as tensors:
        return [(name, bits(tensor)) for name, tensor in tensors]


def expected(version: int, tensors: int = 4, numel: int = 8192) -> list[tuple[str, object]]:
    return [(name, bits(tensor)) for name, tensor in plain_weights(version, tensors, numel)]


@pytest.mark.parametrize("transport", ["collective", "pull"])
def test_every_kind_of_tensor_arrives_bit_for_bit_at_two_receivers(transport: str) -> None:
    reports: list[object] = []
    with running_publisher(bucket_bytes=4096, transport=transport, on_sync=reports.append) as publisher:
        client = PublisherClient(publisher.endpoint)
        receivers = [Receiver(f"r{i}", publisher.endpoint) for i in range(2)]
        eventually(lambda: len(publisher._fanout.members) == 2)
        client.publish(policy(0), iter(odd_weights(5)))
        weights = client.wait_published(policy(0), 5)
        for receiver in receivers:
            eventually(lambda receiver=receiver: has(receiver, weights))
            assert receiver.latest() == weights
            assert content(receiver) == [(name, bits(tensor)) for name, tensor in odd_weights(5)]
            eventually(lambda receiver=receiver: receiver.counters.receive_s > 0)
            assert receiver.counters.by_broadcast == (transport == "collective")
            receiver.close()
        client.close()
    assert weights.digest == weights_digest(odd_weights(5))
    assert len(reports) == (transport == "collective")


def test_one_group_carries_many_versions_and_membership_changes_make_new_epochs() -> None:
    reports = []
    with running_publisher(bucket_bytes=4096, on_sync=reports.append) as publisher:
        client = PublisherClient(publisher.endpoint)
        receivers = [Receiver("r0", publisher.endpoint)]
        eventually(lambda: len(publisher._fanout.members) == 1)
        for version in range(9):
            if version in (3, 6):
                receivers.append(Receiver(f"r{version}", publisher.endpoint))
                eventually(lambda: len(publisher._fanout.members) == len(receivers))
            publish(client, version)
            for receiver in receivers:
                eventually(lambda receiver=receiver, version=version: has(receiver, policy(version)))
                assert content(receiver) == expected(version)
            eventually(lambda version=version: len(reports) == version + 1)
        assert [report.epoch for report in reports] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
        assert not any(report.error for report in reports)
        assert all(content(receiver) == expected(8) for receiver in receivers)
        for receiver in receivers:
            receiver.close()
        client.close()


@pytest.mark.parametrize("path", ["shared", "bytes"])
def test_who_joins_late_gets_the_current_weights_at_once_by_pull(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if path == "bytes":  # as from another PID namespace, where /proc/PID/fd leads nowhere
        monkeypatch.setattr("shared_arena.Arena.descriptor", lambda arena: m.Descriptor(2**22 + 1, 3, arena.nonce))
    with running_publisher() as publisher:
        client = PublisherClient(publisher.endpoint)
        weights = publish(client, 0, tensors=3, numel=1_500_000)
        assert client.path == path
        receiver = Receiver("late", publisher.endpoint)
        eventually(lambda: receiver.counters.receive_s > 0)
        assert receiver.latest() == weights
        assert (receiver.counters.by_pull_shared, receiver.counters.by_pull_bytes) == ((1, 0) if path == "shared" else (0, 1))
        assert content(receiver) == expected(0, 3, 1_500_000)
        receiver.close()
        client.close()


def test_a_damaged_byte_is_noticed_the_old_version_serves_and_the_new_one_comes_after_repair() -> None:
    errors: list[Exception] = []
    damaged = threading.Event()

    def damage(weights: WeightsId) -> None:
        if weights.version == 1:
            _flip_byte(publisher, 5000)
            damaged.set()

    with running_publisher(on_published=damage, bucket_bytes=4096) as publisher:
        client = PublisherClient(publisher.endpoint)
        receiver = Receiver("r", publisher.endpoint, on_error=errors.append, spare=1)
        eventually(lambda: len(publisher._fanout.members) == 1)
        old = publish(client, 0)
        eventually(lambda: has(receiver, old))
        new = publish(client, 1)
        eventually(lambda: receiver.counters.corrupt >= 3, what="broadcast, then pulls, all notice")
        assert damaged.is_set()
        assert receiver.latest() == old
        assert content(receiver) == expected(0)
        assert all("not loaded" in str(error) for error in errors)
        _flip_byte(publisher, 5000)
        eventually(lambda: has(receiver, new))
        assert content(receiver) == expected(1)
        receiver.close()
        client.close()


def _flip_byte(publisher: Publisher, position: int) -> None:
    lease = publisher._cache.lease("test", 5)
    assert lease
    lease.arena.array[position] ^= np.uint8(1)
    publisher._cache.release(lease)


def test_a_slow_loader_keeps_its_slot_and_then_gets_the_newest() -> None:
    with running_publisher(bucket_bytes=4096) as publisher:
        client = PublisherClient(publisher.endpoint)
        slow, fast = Receiver("slow", publisher.endpoint), Receiver("fast", publisher.endpoint)
        eventually(lambda: len(publisher._fanout.members) == 2)
        first = publish(client, 0)
        eventually(lambda: has(slow, first))
        with slow.get_weights(first) as tensors:
            for version in range(1, 6):
                weights = publish(client, version)
                eventually(lambda weights=weights: has(fast, weights))
            assert [(name, bits(tensor)) for name, tensor in tensors] == expected(0)
        eventually(lambda: has(slow, weights))
        assert content(slow) == content(fast) == expected(5)
        slow.close()
        fast.close()
        client.close()


def test_versions_coalesce_to_the_newest_and_the_label_is_what_arrived() -> None:
    ready: list[WeightsId] = []
    with running_publisher(transport="pull") as publisher:
        client = PublisherClient(publisher.endpoint)
        for version in range(5):
            newest = publish(client, version)
        receiver = Receiver("r", publisher.endpoint, on_ready=ready.append)
        receiver.want(policy(2))
        eventually(lambda: has(receiver, newest))
        eventually(lambda: bool(ready))  # it is told after the version can be had
        assert ready == [newest]
        with pytest.raises(NotInCache, match="newest"), receiver.get_weights(policy(2)):
            pass
        receiver.close()
        client.close()


def test_a_wanted_version_that_comes_later_arrives_without_further_words() -> None:
    with running_publisher() as publisher:
        client = PublisherClient(publisher.endpoint)
        receiver = Receiver("r", publisher.endpoint)
        receiver.want(policy(0))
        assert receiver.latest() is None
        weights = publish(client, 0)
        eventually(lambda: has(receiver, weights))
        receiver.close()
        client.close()


def test_with_no_free_slot_a_version_stays_pending_and_is_never_lost() -> None:
    with running_publisher(transport="pull") as publisher:
        client = PublisherClient(publisher.endpoint)
        publish(client, 0)
        reader = publisher._cache.lease("slow reader", 60)
        assert reader
        publish(client, 1)
        for version in (2, 3):
            client.publish(policy(version), lambda version=version: plain_weights(version))
            assert client.pending == policy(version)
        assert client.coalesced == 1
        assert not client.flush(0.05)
        threading.Timer(0.1, publisher._cache.release, [reader]).start()
        assert client.wait_published(policy(3), 5).digest == weights_digest(plain_weights(3))
        assert client.pending is None
        client.close()


def test_a_reader_lease_that_blocks_a_version_is_revoked_at_its_deadline() -> None:
    with running_publisher(transport="pull") as publisher:
        client = PublisherClient(publisher.endpoint)
        publish(client, 0)
        reader = publisher._cache.lease("dead reader", 0.3)
        assert reader
        publish(client, 1)
        client.publish(policy(2), plain_weights(2))
        assert client.pending == policy(2)
        assert client.wait_published(policy(2), 5).version == 2
        assert [bits(tensor) for _, tensor in reader.tensors()] == [bits(tensor) for _, tensor in plain_weights(0)]
        client.close()


def test_weights_of_another_model_epoch_or_an_old_version_are_refused() -> None:
    with running_publisher(epoch=2) as publisher:
        client = PublisherClient(publisher.endpoint)
        client.publish(policy(4, epoch=2), plain_weights(4))
        client.wait_published(policy(4, epoch=2), 5)
        for weights in (WeightsId("critic", 2, 5), policy(5, epoch=1), policy(4, epoch=2), policy(3, epoch=2)):
            with pytest.raises(PublishRefused, match="not taken"):
                client.publish(weights, plain_weights(0))
        client.close()


def test_a_generator_that_raises_publishes_nothing_and_the_next_version_goes_through() -> None:
    def failing() -> Iterator[tuple[str, torch.Tensor]]:
        yield "a", torch.ones(5)
        raise RuntimeError("gather failed")

    with running_publisher() as publisher:
        client = PublisherClient(publisher.endpoint)
        publish(client, 0)
        with pytest.raises(RuntimeError, match="gather failed"):
            client.publish(policy(1), failing())
        assert client.wait_published(policy(0), 1).version == 0
        assert publish(client, 2).version == 2
        client.close()


@pytest.mark.parametrize("payload", [b"", b"\x00", b"\xc1garbage", msgspec.msgpack.encode({"type": "Steal"}), b"\x80\x04pickle"])
def test_malformed_bytes_get_an_error_reply_and_the_publisher_goes_on(payload: bytes) -> None:
    with running_publisher() as publisher, zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(publisher.endpoint)
        socket.send(payload)
        assert socket.poll(5000)
        reply = msgspec.msgpack.decode(socket.recv(), type=m.AnyFromPublisher)
        assert isinstance(reply, m.Refused)
        assert reply.code == "malformed"
        client = PublisherClient(publisher.endpoint)
        assert publish(client, 0).version == 0
        client.close()


OVER = [m.Fetch(lease=9, offset=0, nbytes=5), m.Commit(ticket=3, manifest=Manifest(policy(0), (), 0)), m.Discard(ticket=1)]


@pytest.mark.parametrize("question", OVER)
def test_requests_about_leases_that_are_over_are_refused_by_name(question: m.ToPublisher) -> None:
    with running_publisher() as publisher, zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(publisher.endpoint)
        socket.send(msgspec.msgpack.encode(question))
        assert socket.poll(5000)
        reply = msgspec.msgpack.decode(socket.recv(), type=m.AnyFromPublisher)
        assert isinstance(reply, m.Refused)
        assert reply.code.startswith("unknown_")


@pytest.mark.parametrize("bind", ["tcp://0.0.0.0:0", "tcp://192.0.2.1:0", "tcp://example:0", "ipc://x", "tcp://127.0.0.1"])
def test_only_loopback_is_bound_without_keys(bind: str) -> None:
    with pytest.raises(ValueError, match=r"refused|must read"):
        Publisher("policy", bind=bind)


def test_two_publishers_on_one_host_never_collide_and_nothing_is_left_after_them() -> None:
    zmq.Context.instance().socket(zmq.DEALER).close()  # the process's context and its threads stay
    before = settled()
    with running_publisher() as one, running_publisher() as two:
        for number, publisher in enumerate((one, two)):
            client, receiver = PublisherClient(publisher.endpoint), Receiver("r", publisher.endpoint)
            weights = publish(client, number)
            eventually(lambda receiver=receiver, weights=weights: has(receiver, weights))
            assert content(receiver) == expected(number)
            receiver.close()
            client.close()
    eventually(lambda: open_files() <= before[0] and threads() <= before[1], what=f"{open_files()}, {threads()} go back to {before}")


def test_the_newest_weights_come_with_their_label() -> None:
    with running_publisher(transport="pull") as publisher:
        client, receiver = PublisherClient(publisher.endpoint), Receiver("r", publisher.endpoint)
        weights = publish(client, 0)
        eventually(lambda: has(receiver, weights))
        with receiver.get_weights() as held:
            assert held.weights == weights
            assert weights_digest(held) == weights.digest
        receiver.close()
        client.close()


def test_an_owner_whose_callback_raises_hears_of_it_and_can_no_longer_want_anything() -> None:
    last_words: list[Exception] = []

    def on_ready(weights: WeightsId) -> None:
        raise RuntimeError(f"cannot handle {weights}")

    with running_publisher(transport="pull") as publisher:
        client = PublisherClient(publisher.endpoint)
        receiver = Receiver("r", publisher.endpoint, on_ready=on_ready, on_error=last_words.append)
        publish(client, 0)
        eventually(lambda: receiver.failure)
        assert last_words == [receiver.failure]
        with pytest.raises(RuntimeError, match="receives no weights any more"):
            receiver.want(policy(1))
        receiver.close()
        client.close()


def test_what_the_published_callback_raises_ends_the_publisher() -> None:
    def on_published(weights: WeightsId) -> None:
        raise RuntimeError("the controller is gone")

    publisher, stop, client_errors = Publisher("policy", on_published=on_published), threading.Event(), []
    client = PublisherClient(publisher.endpoint, reply_s=0.5)

    def train() -> None:
        try:
            client.publish(policy(0), plain_weights(0))
            client.wait_published(policy(0), 0.5)
        except TimeoutError as error:
            client_errors.append(error)

    trainer = threading.Thread(target=train)
    trainer.start()
    with pytest.raises(RuntimeError, match="the controller is gone"):
        publisher.run(stop)
    trainer.join(10)
    assert client_errors
    client.close()


def test_a_trainers_client_that_is_dropped_without_being_closed_closes_its_sockets() -> None:
    with running_publisher() as publisher:
        client = PublisherClient(publisher.endpoint)
        sockets = client._socket, client._monitor
        del client
        gc.collect()
        assert [socket.closed for socket in sockets] == [True, True]
