"""kill -9 and SIGSTOP of whoever holds a slot: the reader that maps it, the publisher that owns it, the trainer that fills it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from ce_helpers import bits, eventually, plain_weights, policy, running_publisher

from checkpoint_engine.digest import weights_digest
from checkpoint_engine.publisher import Publisher
from checkpoint_engine.publisher_client import PublisherClient, PublisherGone
from checkpoint_engine.receiver import Receiver

FORK = multiprocessing.get_context("fork")
LEASE_S = 1.5  # of the readers here, so that a test need not wait for ten seconds


def start(target: Any, *arguments: object) -> tuple[BaseProcess, Connection]:
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def strike(process: BaseProcess, stroke: signal.Signals) -> None:
    assert process.pid
    os.kill(process.pid, stroke)
    if stroke is signal.SIGKILL:
        process.join(10)


def told(pipe: Connection) -> Any:
    assert pipe.poll(15), "the process said nothing"
    return pipe.recv()


def load_forever(endpoint: str, member: str, pipe: Connection) -> None:
    """Map the first version, and be asked again and again which bytes it has: (version, digest of the bytes, times that a lease lapsed). Asked with a
    number, let go of it, and tell the same of that version or a newer one."""
    import checkpoint_engine.pull as pull
    import checkpoint_engine.receiver as module

    pull.LEASE_S = module.LEASE_OF_LOAN_S = LEASE_S
    module.SIGN_OF_LIFE_S = LEASE_S / 4
    receiver = Receiver(member, endpoint, collective=False)
    eventually(receiver.latest)
    with receiver.get_weights(lease_s=60.0) as held:
        assert receiver.counters.by_pull_shared == 1
        while True:
            pipe.send((held.weights.version, weights_digest(held), receiver.counters.lapsed))
            if (until := told(pipe)) != "again":
                break
    eventually(lambda: (latest := receiver.latest()) and latest.version >= until)
    with receiver.get_weights() as held:
        pipe.send((held.weights.version, weights_digest(held), receiver.counters.lapsed))
    receiver.close()


def digest_of(version: int) -> str:
    return weights_digest(plain_weights(version))


def publish(client: PublisherClient, version: int) -> None:
    client.publish(policy(version), plain_weights(version), wait_s=5)
    assert client.wait_published(policy(version), 5).digest == digest_of(version)


@pytest.mark.parametrize("noticed", [True, False])
def test_a_reader_killed_with_a_slot_mapped_keeps_it_no_longer_than_its_lease(noticed: bool) -> None:
    with running_publisher(transport="pull") as publisher:
        client = PublisherClient(publisher.endpoint)
        publish(client, 0)
        reader, pipe = start(load_forever, publisher.endpoint, "victim")
        assert told(pipe) == (0, digest_of(0), 0)
        publish(client, 1)
        client.publish(policy(2), plain_weights(2))
        assert client.pending == policy(2)
        strike(reader, signal.SIGKILL)
        if noticed:
            publisher.death_notice("victim")
        assert client.wait_published(policy(2), LEASE_S + 5).digest == digest_of(2)
        client.close()


def test_a_reader_that_was_stopped_beyond_its_lease_reads_whole_bytes_hears_of_it_and_goes_on_to_the_newest() -> None:
    with running_publisher(transport="pull") as publisher:
        client = PublisherClient(publisher.endpoint)
        publish(client, 0)
        reader, pipe = start(load_forever, publisher.endpoint, "stopped")
        assert told(pipe) == (0, digest_of(0), 0)
        strike(reader, signal.SIGSTOP)
        for version in range(1, 5):  # twice around the slots
            publish(client, version)
        strike(reader, signal.SIGCONT)
        pipe.send("again")
        assert told(pipe)[:2] == (0, digest_of(0))
        threading.Event().wait(LEASE_S)  # its next renewal is refused meanwhile
        pipe.send("again")
        version, digest, lapsed = told(pipe)
        assert (version, digest) == (0, digest_of(0))
        assert lapsed >= 1
        pipe.send(4)
        assert told(pipe)[:2] == (4, digest_of(4))
        reader.join(10)
        assert reader.exitcode == 0
        client.close()


def serve(pipe: Connection) -> None:
    publisher = Publisher("policy", transport="pull")
    pipe.send(publisher.endpoint)
    publisher.run(threading.Event())


@pytest.mark.parametrize("at", [0, 2, 4], ids=["before the first tensor", "in the middle", "after the last"])
def test_a_publisher_killed_while_its_slot_is_filled_serves_no_half_and_readers_keep_what_they_map(at: int) -> None:
    process, pipe = start(serve)
    client = PublisherClient(endpoint := told(pipe))
    publish(client, 0)
    receiver = Receiver("r", endpoint, collective=False)
    eventually(receiver.latest)

    def walk() -> Iterator[tuple[str, torch.Tensor]]:
        for number, item in enumerate(plain_weights(1)):
            if number == at:
                strike(process, signal.SIGKILL)
            yield item
        if at == 4:
            strike(process, signal.SIGKILL)

    with pytest.raises(PublisherGone):
        client.publish(policy(1), walk(), wait_s=5)
    assert not client.pending, "the walk was the one of this version: it is not repeated by itself"
    with receiver.get_weights() as held:
        assert (held.weights.version, held.weights.digest, weights_digest(held)) == (0, digest_of(0), digest_of(0))
    client.close()
    receiver.close()
    successor, pipe = start(serve)
    late = Receiver("late", told(pipe), collective=False)
    threading.Event().wait(0.2)
    assert late.latest() is None, "a new publisher has nothing of the old one's"
    late.close()
    strike(successor, signal.SIGKILL)


def train_and_hang(endpoint: str, pipe: Connection) -> None:
    def walk() -> Iterator[tuple[str, torch.Tensor]]:
        for number, item in enumerate(plain_weights(1)):
            if number == 2:
                pipe.send("half")
                told(pipe)
            yield item

    PublisherClient(endpoint, member="trainer#0").publish(policy(1), walk(), wait_s=5)
    pipe.send("done")


def test_a_trainer_that_was_stopped_in_the_middle_of_its_copy_writes_into_nobodys_version() -> None:
    with running_publisher(transport="pull") as publisher:
        first = PublisherClient(publisher.endpoint)
        publish(first, 0)
        trainer, pipe = start(train_and_hang, publisher.endpoint)
        assert told(pipe) == "half"
        strike(trainer, signal.SIGSTOP)
        publisher.death_notice("trainer#0")
        receiver = Receiver("r", publisher.endpoint, collective=False)
        for version in (2, 3):
            publish(first, version)
        pipe.send("go on")
        strike(trainer, signal.SIGCONT)
        trainer.join(10)
        assert trainer.exitcode == 1, "its commit was refused by name"
        eventually(lambda: (latest := receiver.latest()) and latest.version == 3)
        with receiver.get_weights() as held:
            assert [bits(tensor) for _, tensor in held] == [bits(tensor) for _, tensor in plain_weights(3)]
        receiver.close()
        first.close()


def test_after_kill_of_publisher_and_reader_their_memory_has_no_name_and_the_trainer_lets_go_of_it() -> None:
    gc.collect()  # what failed in tests before this one may still be held by its traceback
    before = _traces()
    process, pipe = start(serve)
    endpoint = told(pipe)
    client = PublisherClient(endpoint)
    publish(client, 0)
    reader, said = start(load_forever, endpoint, "reader")
    assert told(said)[0] == 0
    strike(process, signal.SIGKILL)
    strike(reader, signal.SIGKILL)
    client.close()
    gc.collect()
    assert _traces() <= before


def _traces() -> set[str]:
    """Names in /dev/shm, and slots that are mapped here, by their inode."""
    named = Path("/dev/shm")
    mapped = [line.split()[4] for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:asyncflow-weights" in line]
    return {*mapped, *(path.name for path in (named.iterdir() if named.is_dir() else ()) if "asyncflow" in path.name)}
