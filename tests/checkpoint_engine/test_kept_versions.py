"""A version that an engine keeps after its load in one of two slots, to start with it anew: it holds up no other for long, and stays whole."""

from __future__ import annotations

import math
import threading
import time

import pytest
from ce_helpers import bits, eventually, plain_weights, policy, running_publisher

from checkpoint_engine import cache as cache_module
from checkpoint_engine.cache import KEPT_S, HostCache
from checkpoint_engine.copy_out import copy_out
from checkpoint_engine.loan import Loan
from checkpoint_engine.publisher import Publisher
from checkpoint_engine.publisher_client import PublisherClient
from checkpoint_engine.receiver import Receiver
from checkpoint_engine.slot import Lease
from shared_arena import Arena


def content(held: Lease) -> list[tuple[str, object]]:
    return [(name, bits(tensor)) for name, tensor in held.tensors()]


def expected(version: int) -> list[tuple[str, object]]:
    return [(name, bits(tensor)) for name, tensor in plain_weights(version)]


def publish(client: PublisherClient, version: int) -> None:
    client.publish(policy(version), plain_weights(version), wait_s=5)
    client.wait_published(policy(version), 5)


def wait_for(receiver: Receiver, version: int) -> None:
    eventually(lambda: (latest := receiver.latest()) is not None and latest.version == version, what=f"version {version}")


def load(receiver: Receiver) -> Lease:
    """As an engine does that may have to be started anew."""
    with receiver.get_weights() as held:
        kept = held.keep()
    assert kept is not None
    return kept


def memory_of(publisher: Publisher) -> set[bytes]:
    return set(publisher._cache.nonces())


def test_a_kept_version_of_one_who_does_not_load_holds_the_version_after_the_next_up_for_seconds_and_stays_whole() -> None:
    with running_publisher(transport="pull") as publisher:
        client, receiver = PublisherClient(publisher.endpoint), Receiver("evaluates", publisher.endpoint, spare=1)
        publish(client, 0)
        wait_for(receiver, 0)
        kept = load(receiver)
        publish(client, 1)
        wait_for(receiver, 1)
        began = time.monotonic()
        client.publish(policy(2), plain_weights(2))
        assert client.pending == policy(2), "at first it blocks its slot: by now most have loaded the next one"
        assert client.wait_published(policy(2), 20).version == 2
        assert time.monotonic() - began < KEPT_S + 2, "30 s before"
        wait_for(receiver, 2)
        publish(client, 3)
        assert content(kept) == expected(0)
        kept.release()
        receiver.close()
        client.close()


def test_who_loads_in_the_middle_of_it_is_not_written_over_and_loses_no_time_to_what_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 0 is kept, 1 is being loaded, slowly; 2 comes into the slot of 0, and 3 waits for the load."""
    monkeypatch.setattr(cache_module, "KEPT_S", 0.2)
    with running_publisher(transport="pull") as publisher:
        client, receiver = PublisherClient(publisher.endpoint), Receiver("slow", publisher.endpoint, spare=1)
        publish(client, 0)
        wait_for(receiver, 0)
        kept = load(receiver)
        publish(client, 1)
        wait_for(receiver, 1)
        loading, loaded = threading.Event(), threading.Event()
        seen: list[list[tuple[str, object]]] = []

        def load_slowly() -> None:
            with receiver.get_weights() as held:
                half = iter(held)
                names = [next(half) for _ in range(2)]
                loading.set()
                loaded.wait(20)
                seen.append([(name, bits(tensor)) for name, tensor in [*names, *half]])

        loader = threading.Thread(target=load_slowly)
        loader.start()
        assert loading.wait(5)
        client.publish(policy(2), plain_weights(2))
        assert client.wait_published(policy(2), 5).version == 2
        wait_for(receiver, 2)
        client.publish(policy(3), plain_weights(3))
        assert not client.flush(1.5), "what is being loaded holds its slot for longer than what is kept"
        assert content(kept) == expected(0)
        loaded.set()
        loader.join(5)
        assert seen == [expected(1)]
        assert client.wait_published(policy(3), 5).version == 3
        wait_for(receiver, 3)
        assert content(kept) == expected(0)
        kept.release()
        assert receiver.counters.lapsed == 0
        receiver.close()
        client.close()


def test_a_kept_version_that_nobody_needed_the_slot_of_goes_back_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """However late it is let go: the trainer's next copy goes into warm pages."""
    monkeypatch.setattr(cache_module, "KEPT_S", 0.2)
    with running_publisher(transport="pull") as publisher:
        client, receiver = PublisherClient(publisher.endpoint), Receiver("late", publisher.endpoint, spare=1)
        publish(client, 0)
        wait_for(receiver, 0)
        kept = load(receiver)
        publish(client, 1)
        wait_for(receiver, 1)
        before = memory_of(publisher)
        held = next(iter(publisher._outlet._held.values()))
        eventually(lambda: held.lease.deadline < time.monotonic(), what="the publisher knows that it gives way")
        threading.Event().wait(1.2)  # one more round of renewals
        kept.release()
        eventually(lambda: len(publisher._outlet._held) == 1, what="it was given back")
        publish(client, 2)
        publish(client, 3)
        assert memory_of(publisher) == before
        receiver.close()
        client.close()


def test_what_a_loan_is_needed_for_says_for_how_long() -> None:
    now, back = [0.0], []
    cache = HostCache(clock=lambda: now[0])

    def lend(version: int) -> Loan:
        arena, loan = Arena(), Loan(version, lambda loan, tainted: back.append((loan.number, tainted)))
        assert cache.adopt(copy_out(arena, policy(version), plain_weights(version, 1, 10)), arena, loan)
        return loan

    first = lend(0)
    held = cache.lease("r", 60.0)
    assert held is not None
    kept = held.keep()
    assert kept is not None
    assert cache.loans() == [(first, math.inf)], "the newest"
    second = lend(1)
    assert cache.loans() == [(first, math.inf), (second, math.inf)], "it is being loaded"
    held.release()
    assert cache.loans() == [(first, KEPT_S), (second, math.inf)]
    now[0] += KEPT_S + 1
    assert cache.loans() == [(first, -1.0), (second, math.inf)], "over, and nobody asked for it"
    assert not back
    kept.release()
    assert back == [(0, False)]


def test_what_somebody_still_reads_stays_when_the_cache_is_closed() -> None:
    now = [0.0]
    cache = HostCache(clock=lambda: now[0])
    cache.put(policy(0), plain_weights(0))
    lease = cache.lease("engine", 5.0)
    assert lease is not None
    kept = lease.keep()
    assert kept is not None
    lease.release()
    cache.put(policy(1), plain_weights(1))
    now[0] += KEPT_S + 1
    assert cache.may_adopt(), "it gave way"
    cache.close()
    assert content(kept) == expected(0)
    assert Arena.attach(kept.arena.descriptor()).nbytes == kept.arena.nbytes, "another process may still be told where it is"
