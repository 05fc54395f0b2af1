"""A version that the publisher refuses for now stays pending: counted, never waited for by the step, never lost. Refused for good is told at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from ce_helpers import Named, plain_weights, policy, running_publisher

from checkpoint_engine import messages as m
from checkpoint_engine.cache import HostCache
from checkpoint_engine.digest import weights_digest
from checkpoint_engine.publisher import Publisher
from checkpoint_engine.publisher_client import PublisherClient, PublisherGone, PublishRefused
from checkpoint_engine.slot import Reservation
from checkpoint_engine.weights_id import WeightsId
from shared_arena import Arena


def walk(version: int) -> Callable[[], Named]:
    return lambda: plain_weights(version)


def starve(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Until the event that is returned is set, the publisher's host has no memory for a slot."""
    fed, plain = threading.Event(), HostCache.reserve

    def reserve(cache: HostCache, weights: WeightsId, nbytes: int = 0) -> Reservation | None:
        if cache is publisher._cache and not fed.is_set():
            raise OSError(12, "Cannot allocate memory")
        return plain(cache, weights, nbytes)

    monkeypatch.setattr(HostCache, "reserve", reserve)
    return fed


def test_a_version_for_which_there_is_no_memory_stays_pending_and_the_step_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_publisher(transport="pull") as publisher:
        client = PublisherClient(publisher.endpoint)
        fed = starve(publisher, monkeypatch)
        client.publish(policy(0), walk(0))
        assert client.blocked_s < 5
        assert (client.pending, client.deferred, client.refused) == (policy(0), 1, 1)
        assert "no_memory" in client.refusal
        client.publish(policy(1), walk(1))
        assert (client.pending, client.coalesced, client.refused) == (policy(1), 1, 2)
        assert not client.flush(0.3)
        with pytest.raises(PublisherGone, match=r"pending: policy.*last refused: .*no_memory"):
            client.wait_published(policy(1), 0.3)
        threading.Timer(0.2, fed.set).start()
        assert client.wait_published(policy(1), 10).digest == weights_digest(plain_weights(1))
        assert client.pending is None
        client.close()


def test_who_waits_for_memory_gets_it_when_it_comes_free_and_is_not_refused_before(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_publisher(transport="pull") as publisher:
        client = PublisherClient(publisher.endpoint)
        fed = starve(publisher, monkeypatch)
        threading.Timer(0.3, fed.set).start()
        client.publish(policy(0), iter(plain_weights(0)), wait_s=10)
        assert (client.pending, client.refused) == (None, 0)
        client.close()


def slow_at_first(version: int, seconds: float) -> Callable[[], Iterator[tuple[str, torch.Tensor]]]:
    walks = [0]

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        walks[0] += 1
        if walks[0] == 1:
            time.sleep(seconds)
        yield from plain_weights(version)

    return tensors


def test_a_copy_that_took_longer_than_its_slot_was_granted_is_made_again() -> None:
    with running_publisher(transport="pull", copy_timeout_s=0.3) as publisher:
        client = PublisherClient(publisher.endpoint)
        client.publish(policy(0), slow_at_first(0, 1.0), wait_s=5)
        assert (client.pending, client.refused) == (policy(0), 1)
        assert "unknown_ticket" in client.refusal
        assert client.flush(5)
        assert client.wait_published(policy(0), 5).digest == weights_digest(plain_weights(0))
        client.publish(policy(1), slow_at_first(1, 1.0), wait_s=5)
        assert client.wait_published(policy(1), 10).digest == weights_digest(plain_weights(1))
        client.close()


def test_what_was_walked_and_cannot_be_again_is_an_error_and_not_pending() -> None:
    with running_publisher(transport="pull", copy_timeout_s=0.3) as publisher:
        client = PublisherClient(publisher.endpoint)
        with pytest.raises(PublishRefused, match="unknown_ticket"):
            client.publish(policy(0), slow_at_first(0, 1.0)(), wait_s=5)
        assert (client.pending, client.refused) == (None, 0)
        client.publish(policy(1), plain_weights(1), wait_s=5)
        assert client.wait_published(policy(1), 5).version == 1
        client.close()


def test_no_memory_for_bytes_that_travel_is_a_refusal_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared_arena.Arena.descriptor", lambda arena: m.Descriptor(2**22 + 1, 3, arena.nonce))  # as from another PID namespace
    fed, plain = threading.Event(), Arena.grow

    def grow(arena: Arena, nbytes: int) -> None:
        if nbytes and not fed.is_set() and threading.current_thread().name == "publisher":
            raise OSError(12, "Cannot allocate memory")
        plain(arena, nbytes)

    with running_publisher(transport="pull") as publisher:
        client = PublisherClient(publisher.endpoint)
        monkeypatch.setattr(Arena, "grow", grow)
        client.publish(policy(0), walk(0), wait_s=5)
        assert (client.pending, client.refused, client.path) == (policy(0), 1, "bytes")
        fed.set()
        assert client.flush(5)
        assert client.wait_published(policy(0), 5).digest == weights_digest(plain_weights(0))
        client.close()


def test_a_version_that_is_refused_for_good_is_told_and_is_not_pending() -> None:
    with running_publisher(epoch=2) as publisher:
        client = PublisherClient(publisher.endpoint)
        for weights in (WeightsId("critic", 2, 5), policy(5, epoch=1)):
            with pytest.raises(PublishRefused, match="not taken"):
                client.publish(weights, walk(0))
            assert (client.pending, client.refused) == (None, 0)
        assert client.flush()
        client.close()


def test_the_error_of_a_walk_is_told_also_where_its_slot_is_gone_by_then() -> None:
    def fails_late() -> Iterator[tuple[str, torch.Tensor]]:
        yield from plain_weights(0)
        time.sleep(1.0)
        raise RuntimeError("gather failed")

    with running_publisher(transport="pull", copy_timeout_s=0.3) as publisher:
        client = PublisherClient(publisher.endpoint)
        with pytest.raises(RuntimeError, match="gather failed"):
            client.publish(policy(0), fails_late(), wait_s=5)
        client.close()
