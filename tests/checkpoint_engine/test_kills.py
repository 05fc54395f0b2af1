"""kill -9 of receivers and of the trainer at random moments: whole or nothing, survivors go on, everyone ends on the newest bytes."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import pytest
from ce_helpers import bits, eventually, plain_weights, policy, running_publisher

from checkpoint_engine.collective import FORM_S
from checkpoint_engine.digest import weights_digest
from checkpoint_engine.fanout import SyncReport
from checkpoint_engine.publisher import Publisher
from checkpoint_engine.publisher_client import PublisherClient
from checkpoint_engine.receiver import Receiver
from checkpoint_engine.seat import Seat
from checkpoint_engine.weights_id import WeightsId

pytestmark = pytest.mark.e2e  # a group that forms too late, on a busy machine, is given up for a pull: then there is no broadcast to be killed in

FORK = multiprocessing.get_context("fork")
TENSORS, NUMEL = 8, 4500  # 36 buckets of 4 KiB a version
KILLS = 18
SENDER_KILLS = 32


def follow(endpoint: str, member: str, die_at: int | None, pipe: Connection) -> None:
    """A receiver: says which version (and digest of its own bytes) it can load; kills itself at bucket `die_at` (0: before the group stands)."""
    if die_at == 0:
        Seat.take = lambda seat, record: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign,assignment]
    elif die_at is not None:
        _die_at_bucket(die_at)
    made = threading.Event()

    def tell(weights: WeightsId) -> None:
        made.wait(10)  # the receiver's thread is there before its owner has it
        pipe.send((weights, _digest_of(receiver, weights)))

    receiver = Receiver(member, endpoint, on_ready=tell)
    made.set()
    pipe.poll(60)
    receiver.close()


def _digest_of(receiver: Receiver, weights: WeightsId) -> str:
    with receiver.get_weights(weights) as tensors:
        return weights_digest(tensors)


def _die_at_bucket(number: int) -> None:
    """SIGKILL when the `number`-th bucket (over all versions) has landed: a fault injected from outside of the engine's code."""
    import checkpoint_engine.broadcast as module

    landed, plain = [0], module._land

    def land(*arguments: object) -> None:
        plain(*arguments)  # type: ignore[arg-type]
        landed[0] += 1
        if landed[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)

    module._land = land  # type: ignore[assignment]


class Follower:
    def __init__(self, endpoint: str, member: str, die_at: int | None = None) -> None:
        self.member = member
        self.pipe, theirs = FORK.Pipe()
        self.process: BaseProcess = FORK.Process(target=follow, args=(endpoint, member, die_at, theirs))
        self.process.start()
        theirs.close()

    def await_version(self, version: int, deadline_s: float = 15.0) -> tuple[WeightsId, str]:
        def newest() -> tuple[WeightsId, str] | None:
            while self.pipe.poll():
                weights, digest = self.pipe.recv()
                assert weights.digest == digest, "the label is not of these bytes"
                if weights.version >= version:
                    return weights, digest
            return None

        return eventually(newest, deadline_s, f"{self.member} has version {version}")

    def stop(self) -> None:
        self.pipe.send("stop")
        self.process.join(10)
        assert self.process.exitcode == 0


def test_receivers_killed_at_random_buckets_never_harm_the_others() -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    draw = random.Random(seed)
    reports: list[SyncReport] = []
    with running_publisher(bucket_bytes=4096, on_sync=reports.append, group_timeout_s=5.0) as publisher:
        client = PublisherClient(publisher.endpoint)
        survivors = [Follower(publisher.endpoint, f"survivor-{i}") for i in range(2)]
        version = -1
        for kill in range(KILLS):
            victim = Follower(publisher.endpoint, f"victim-{kill}", die_at=draw.randint(1, 36))
            eventually(lambda: len(publisher._fanout.members) == 3, what="the victim joined")
            version += 1
            client.publish(policy(version), plain_weights(version, TENSORS, NUMEL), wait_s=5)
            victim.process.join(15)
            assert victim.process.exitcode == -signal.SIGKILL
            if draw.random() < 0.5:  # half of the time nobody tells the publisher but the connection itself
                publisher.death_notice(victim.member)
            for survivor in survivors:
                weights, digest = survivor.await_version(version)
                assert (weights.version, digest) == (version, weights_digest(plain_weights(version, TENSORS, NUMEL)))
            publisher.death_notice(victim.member)
            eventually(lambda: len(publisher._fanout.members) == 2)
            victim.pipe.close()
        assert sum(bool(report.error) for report in reports) >= KILLS // 2, "kills hit broadcasts that were under way"
        eventually(lambda: publisher._fanout._phase == "idle")
        client.publish(policy(version + 1), plain_weights(version + 1, TENSORS, NUMEL), wait_s=5)
        for survivor in survivors:
            survivor.await_version(version + 1)
        eventually(lambda: reports[-1].weights.version == version + 1, what="the last broadcast ended")
        assert not reports[-1].error, "survivors form a group again"
        for survivor in survivors:
            survivor.stop()
        client.close()


@pytest.mark.parametrize("noticed", [True, False])
def test_a_receiver_killed_while_a_group_forms_costs_the_others_at_most_the_time_to_form(noticed: bool) -> None:
    with running_publisher(bucket_bytes=4096) as publisher:
        client = PublisherClient(publisher.endpoint)
        survivor, victim = Follower(publisher.endpoint, "survivor"), Follower(publisher.endpoint, "victim", die_at=0)
        eventually(lambda: len(publisher._fanout.members) == 2)
        client.publish(policy(0), plain_weights(0))
        victim.process.join(10)
        if noticed:
            publisher.death_notice("victim")
        survivor.await_version(0, deadline_s=FORM_S + 3)
        publisher.death_notice("victim")
        client.publish(policy(1), plain_weights(1), wait_s=5)
        survivor.await_version(1, deadline_s=FORM_S + 3)
        survivor.stop()
        client.close()


def test_a_receiver_that_stops_answering_delays_nobody_beyond_the_timeout() -> None:
    reports: list[SyncReport] = []
    with running_publisher(bucket_bytes=4096, on_sync=reports.append, group_timeout_s=1.0) as publisher:
        client = PublisherClient(publisher.endpoint)
        followers = [Follower(publisher.endpoint, f"f{i}") for i in range(2)]
        eventually(lambda: len(publisher._fanout.members) == 2)
        client.publish(policy(0), plain_weights(0))
        for follower in followers:
            follower.await_version(0)
        stopped, healthy = followers
        assert stopped.process.pid
        os.kill(stopped.process.pid, signal.SIGSTOP)
        client.publish(policy(1), plain_weights(1, 8, 200_000))  # more than the sockets buffer
        healthy.await_version(1)
        assert any("hangs" in report.error or "peer" in report.error for report in reports)
        os.kill(stopped.process.pid, signal.SIGCONT)
        stopped.await_version(1)
        for follower in followers:
            follower.stop()
        client.close()


def publish_and_die(endpoint: str, version: int, die_after: int, pipe: Connection) -> None:
    def walk() -> object:
        for number, item in enumerate(plain_weights(version, TENSORS, NUMEL)):
            if number == die_after:
                os.kill(os.getpid(), signal.SIGKILL)
            yield item

    PublisherClient(endpoint, member=f"trainer#{version}").publish(policy(version), walk(), wait_s=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("noticed", [True, False])
def test_a_trainer_killed_while_it_copies_publishes_nothing_and_its_successor_goes_on(noticed: bool) -> None:
    with running_publisher(bucket_bytes=4096, transport="pull") as publisher:
        client = PublisherClient(publisher.endpoint, member="first")
        client.publish(policy(0), plain_weights(0, TENSORS, NUMEL))
        old = client.wait_published(policy(0), 5)
        receiver = Receiver("r", publisher.endpoint)
        eventually(lambda: receiver.latest() == old)
        for version in (1, 2, 3):
            child = FORK.Process(target=publish_and_die, args=(publisher.endpoint, version, version, FORK.Pipe()[0]))
            child.start()
            child.join(10)
            assert child.exitcode == -signal.SIGKILL
            if noticed:
                publisher.death_notice(f"trainer#{version}")
        assert publisher.published == receiver.latest() == old
        client.publish(policy(4), plain_weights(4, TENSORS, NUMEL), wait_s=5)
        new = client.wait_published(policy(4), 5)
        eventually(lambda: receiver.latest() == new)
        with receiver.get_weights(new) as tensors:
            assert [bits(tensor) for _, tensor in tensors] == [bits(tensor) for _, tensor in plain_weights(4, TENSORS, NUMEL)]
        receiver.close()
        client.close()


def serve(bind: str, epoch: int, die_at: int, pipe: Connection) -> None:
    """A publisher that kills itself at bucket `die_at` of all that it sends. Says its endpoint, and then when both receivers follow it."""
    _die_at_bucket(die_at)
    publisher = Publisher("policy", epoch=epoch, bind=bind, bucket_bytes=4096, group_timeout_s=5.0)
    threading.Thread(target=publisher.run, args=(threading.Event(),), daemon=True).start()
    pipe.send(publisher.endpoint)
    eventually(lambda: len(publisher._fanout.members) == 2, what="both receivers follow")
    pipe.send("followed")
    pipe.poll(60)


def test_senders_killed_at_random_buckets_leave_the_old_weights_serving_and_their_successors_bring_the_newest() -> None:
    """Each publisher brings one version to all, and dies at a random bucket of the next; its successor listens at the same place."""
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    draw = random.Random(seed)
    bind, survivors, died_sending = "tcp://127.0.0.1:0", [], 0
    for life in range(SENDER_KILLS):
        pipe, theirs = FORK.Pipe()
        process = FORK.Process(target=serve, args=(bind, life, 36 + draw.randint(1, 36), theirs), daemon=True)
        process.start()
        theirs.close()
        assert pipe.poll(15)
        bind = pipe.recv()
        survivors = survivors or [Follower(bind, f"survivor-{i}") for i in range(2)]
        assert pipe.poll(30), "receivers find the successor"
        client = PublisherClient(bind)
        for version in (2 * life, 2 * life + 1):
            client.publish(policy(version, life), plain_weights(version, TENSORS, NUMEL), wait_s=5)
            if version % 2:
                process.join(3)
                died_sending += process.exitcode == -signal.SIGKILL
            for survivor in survivors if version % 2 == 0 else ():
                weights, digest = survivor.await_version(version, deadline_s=20)
                assert (weights.epoch, weights.version, digest) == (life, version, weights_digest(plain_weights(version, TENSORS, NUMEL)))
        process.kill()
        process.join(10)
        client.close()
        pipe.close()
    assert died_sending >= SENDER_KILLS // 2, "kills hit broadcasts that were under way"
    for survivor in survivors:
        survivor.stop()
