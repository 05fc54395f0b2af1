"""Well-formed nonsense and vanished peers: no value ends the publisher, holds a slot for ever, or keeps the memory of a version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
import zmq
from ce_helpers import eventually, open_files, plain_weights, policy, running_publisher

from checkpoint_engine import messages as m
from checkpoint_engine.cache import HostCache
from checkpoint_engine.deadline import MOST_WAIT_S, clamp_s
from checkpoint_engine.manifest import Manifest, ManifestError, TensorMeta, check_manifest
from checkpoint_engine.membership import MOST_MEMBERS
from checkpoint_engine.publisher import Publisher
from checkpoint_engine.publisher_client import PublisherClient
from checkpoint_engine.receiver import Receiver
from checkpoint_engine.weights_id import WeightsId
from shared_arena import Arena

NAN = float("nan")


@contextmanager
def stranger(publisher: Publisher) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(publisher.endpoint)
        yield socket


def ask(socket: zmq.Socket[bytes], question: m.ToPublisher | bytes) -> m.FromPublisher:
    socket.send(question if isinstance(question, bytes) else msgspec.msgpack.encode(question))
    assert socket.poll(5000), "no answer"
    return msgspec.msgpack.decode(socket.recv_multipart()[0], type=m.AnyFromPublisher)


def deep_commit() -> bytes:
    """A manifest with one element more than it has, nested deeper than any decoder follows."""
    encoded = msgspec.msgpack.encode(m.Commit(ticket=1, manifest=Manifest(policy(0), (), 7)))
    place = encoded.index(b"\x93\x94")  # the manifest: an array of 3 whose first element is an array of 4
    return encoded[:place] + b"\x94" + encoded[place + 1 :].replace(b"\x90\x07", b"\x90\x07" + b"\x91" * 100_000 + b"\x01", 1)


WILD = {
    "another model": m.AwaitPublished(seq=1, weights=WeightsId("critic", 0, 0), wait_s=1.0),
    "no memory has so much": m.Reserve(seq=1, member="t", weights=policy(5), nbytes=2**63 - 1, wait_s=0.0),
    "negative bytes": m.Reserve(seq=1, member="t", weights=policy(5), nbytes=-1, wait_s=0.0),
    "negative version": m.Reserve(seq=1, member="t", weights=policy(-1), nbytes=0, wait_s=0.0),
    "nested too deep": deep_commit(),
}


@pytest.mark.parametrize("name", WILD)
def test_wild_values_are_refused_and_the_publisher_goes_on(name: str) -> None:
    with running_publisher(transport="pull") as publisher, stranger(publisher) as socket:
        client = PublisherClient(publisher.endpoint)
        client.publish(policy(0), plain_weights(0))
        client.wait_published(policy(0), 5)
        assert isinstance(ask(socket, WILD[name]), m.Refused)
        client.publish(policy(1), plain_weights(1))
        assert client.wait_published(policy(1), 5).version == 1
        client.close()


def test_a_lease_whose_time_is_no_number_ends_at_once_and_holds_no_slot() -> None:
    with running_publisher(transport="pull") as publisher, stranger(publisher) as socket:
        client = PublisherClient(publisher.endpoint)
        for version in range(4):
            client.publish(policy(version), plain_weights(version), wait_s=5)
            assert client.wait_published(policy(version), 5).version == version
            assert isinstance(ask(socket, m.Pull(seq=1, member=f"ghost-{version}", lease_s=NAN)), m.Offer)
        client.close()
    with pytest.raises(ValueError, match="lease_s"):
        HostCache().lease("r", NAN)


def test_a_wait_whose_time_is_no_number_is_answered_at_once() -> None:
    assert [clamp_s(NAN), clamp_s(-1.0), clamp_s(float("inf"))] == [0.0, 0.0, MOST_WAIT_S]
    with running_publisher(transport="pull") as publisher, stranger(publisher) as socket:
        assert isinstance(ask(socket, m.AwaitPublished(seq=1, weights=policy(9), wait_s=NAN)), m.Published)
        held = [ask(socket, m.Reserve(seq=1, member="t", weights=policy(version), nbytes=8, wait_s=0.0)) for version in range(2)]
        assert [type(answer) for answer in held] == [m.Slot, m.Slot]


def test_only_so_many_questions_wait_for_a_version() -> None:
    with running_publisher(transport="pull") as publisher, stranger(publisher) as socket:
        for _ in range(1024):
            socket.send(msgspec.msgpack.encode(m.AwaitPublished(seq=1, weights=policy(9), wait_s=60.0)))
        answer = ask(socket, m.AwaitPublished(seq=2, weights=policy(9), wait_s=60.0))
        assert isinstance(answer, m.Refused)
        assert answer.seq == 2


def test_a_flood_of_names_is_bounded_and_who_follows_already_goes_on() -> None:
    with running_publisher(transport="pull") as publisher, stranger(publisher) as socket:
        receiver = Receiver("r", publisher.endpoint)
        eventually(lambda: "r" in publisher._fanout.members)
        for number in range(MOST_MEMBERS - 1):
            assert isinstance(ask(socket, m.Join(seq=number + 1, member=f"ghost-{number}", collective=True)), m.Available)
        assert isinstance(ask(socket, m.Join(seq=9999, member="one-more", collective=True)), m.Refused)
        client = PublisherClient(publisher.endpoint)
        client.publish(policy(0), plain_weights(0))
        client.wait_published(policy(0), 5)
        eventually(lambda: receiver.latest() is not None)
        receiver.close()
        client.close()


def test_members_that_vanish_under_a_lease_do_not_keep_the_memory_of_what_they_read() -> None:
    with running_publisher(transport="pull") as publisher, stranger(publisher) as socket:
        client = PublisherClient(publisher.endpoint)
        counts = []
        for version in range(12):
            client.publish(policy(version), plain_weights(version), wait_s=5)
            client.wait_published(policy(version), 5)
            ask(socket, m.Pull(seq=1, member=f"killed-{version}", lease_s=0.0))
            counts.append(open_files())
        eventually(lambda: len(publisher._outlet._held) <= 2)
        assert max(counts[6:]) <= max(counts[:6]) + 1, f"an arena a vanished member stays open: {counts}"
        client.close()


def test_what_a_member_that_was_held_for_dead_still_reads_is_not_written_over() -> None:
    with running_publisher(transport="pull") as publisher, stranger(publisher) as socket:
        client = PublisherClient(publisher.endpoint)
        for version in range(3):
            client.publish(policy(version), plain_weights(version), wait_s=5)
            client.wait_published(policy(version), 5)
            if version == 0:
                offer = ask(socket, m.Pull(seq=1, member="stopped", lease_s=30.0))
                assert isinstance(offer, m.Offer)
                assert offer.descriptor is not None
                reading = Arena.attach(offer.descriptor)
                before = reading.array.tobytes()
                publisher.death_notice("stopped")
                eventually(lambda: not publisher._outlet._held)
        assert reading.array.tobytes() == before
        reading.close()
        client.close()


def test_a_receiver_that_closes_under_a_reader_leaves_it_what_it_reads() -> None:
    with running_publisher(transport="pull") as publisher:
        client = PublisherClient(publisher.endpoint)
        client.publish(policy(0), plain_weights(0))
        client.wait_published(policy(0), 5)
        receiver = Receiver("r", publisher.endpoint)
        eventually(receiver.latest)
        with receiver.get_weights() as held:
            receiver.close()
            assert all((tensor == want).all() for (_, tensor), (_, want) in zip(held, plain_weights(0), strict=True))
        client.close()


def test_a_tensor_of_a_million_dimensions_is_refused_before_they_are_multiplied() -> None:
    meta = TensorMeta("w", "float32", (2**40,) * 1_000_000, 0, 4)
    with pytest.raises(ManifestError, match="dimensions"):
        check_manifest(Manifest(policy(0), (meta,), 4))
