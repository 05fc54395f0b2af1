"""Sender and receivers killed and stopped at every bucket of a small version: survivors hear in time, keep serving, and end on the newest bytes.

On a busy machine a group may form too late and a version be pulled: then nobody was struck, and the next version is to do it.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ce_helpers import bits, eventually, plain_weights, policy, running_publisher
from sharded_ranks import DIED, run_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import checkpoint_engine.broadcast as broadcast_module
from checkpoint_engine.digest import weights_digest
from checkpoint_engine.fanout import SyncReport
from checkpoint_engine.publisher import Publisher
from checkpoint_engine.publisher_client import PublisherClient, PublisherGone
from checkpoint_engine.receiver import Receiver
from checkpoint_engine.sharded import ShardedClient, ShardedWalk, WalkBroken
from checkpoint_engine.weights_id import WeightsId

pytestmark = pytest.mark.e2e

FORK = multiprocessing.get_context("fork")
TENSORS, NUMEL = 3, 4000
BUCKETS = 12  # of 4 KiB, a version
GROUP_TIMEOUT_S = 1.0
HEARD_S = 10.0  # from the stroke until a survivor has heard of it
STRUCK = ((signal.SIGKILL, 0), (signal.SIGSTOP, 0), (signal.SIGKILL, 1))  # 0: the receivers' default, one slot
RANDOM_KILLS = 50


STARTED: list[BaseProcess] = []


@pytest.fixture(autouse=True)
def _nobody_is_left() -> Iterator[None]:
    """A stopped child would keep this process from ending."""
    yield
    for process in STARTED:
        process.kill()
        process.join(10)
    STARTED.clear()


def start(target: Any, *arguments: Any) -> BaseProcess:
    process = FORK.Process(target=target, args=arguments, daemon=True)
    process.start()
    STARTED.append(process)
    return process


def strike_at(bucket: int, stroke: signal.Signals, armed: Event | None = None) -> None:
    """`stroke` to this process when bucket `bucket` (from 1) of a version has landed, once `armed`: a fault from outside of the engine's code."""
    plain = broadcast_module._land

    def land(group: Any, lane: Any, flight: Any, *rest: Any) -> None:
        plain(group, lane, flight, *rest)
        if flight[0] // 4096 + 1 == bucket and (armed is None or armed.is_set()):
            os.kill(os.getpid(), stroke)

    broadcast_module._land = land


def loaded(receiver: Receiver) -> tuple[int, int, str] | None:
    """(epoch, version, digest) of what can be loaded now, and its bytes are those."""
    if receiver.latest() is None:
        return None
    with receiver.get_weights() as held:
        assert weights_digest(held) == held.weights.digest, "the label is not of these bytes"
        return held.weights.epoch, held.weights.version, held.weights.digest


def follow(endpoint: str, member: str, at: int, stroke: signal.Signals, spare: int, pipe: Connection) -> None:
    """Tells ("began" | "over" | "ready" | "failed", monotonic time, what can be loaded then). Strikes itself at bucket `at` (0: never)."""
    if at:
        strike_at(at, stroke)

    made = threading.Event()

    def tell(what: str) -> None:
        made.wait(10)  # the receiver's thread is there before its owner has it
        pipe.send((what, time.monotonic(), loaded(receiver)))

    receiver = Receiver(
        member,
        endpoint,
        on_ready=lambda _: tell("ready"),
        on_error=lambda _: tell("failed"),
        on_transfer=lambda begins: tell("began" if begins else "over"),
        spare=spare,
    )
    made.set()
    pipe.poll(120)
    receiver.close()


class Follower:
    """A receiver in a process of its own, and what an engine behind it has loaded: every version that was ready, at once."""

    def __init__(self, endpoint: str, member: str, at: int = 0, stroke: signal.Signals = signal.SIGKILL, spare: int = 0) -> None:
        self.member, self.spare = member, spare
        self.told_s: dict[str, float] = {"began": 0.0, "over": 0.0, "ready": 0.0, "failed": 0.0}  # the last time
        self.loaded: tuple[int, int, str] | None = None
        self.pipe, theirs = FORK.Pipe()
        self.process = start(follow, endpoint, member, at, stroke, spare, theirs)
        theirs.close()

    def take_in(self) -> None:
        """Never backwards. Never nothing once there was something: with one slot, where the next version is written over it, for as long as none is
        complete."""
        while self.pipe.poll():
            what, at_s, now = self.pipe.recv()
            self.told_s[what] = at_s
            if now is None and self.spare == 0 and what != "ready":
                continue  # the engine goes on with what it has
            assert self.loaded is None or (now is not None and now[:2] >= self.loaded[:2]), f"{self.member}: {self.loaded}, then {now}"
            self.loaded = now

    def has(self, weights: tuple[int, int]) -> bool:
        self.take_in()
        return self.loaded is not None and self.loaded[:2] >= weights

    def await_version(self, epoch: int, version: int, deadline_s: float = 20.0) -> None:
        eventually(lambda: self.has((epoch, version)), deadline_s, f"{self.member} has version {version} of epoch {epoch}, not {self.loaded}")
        assert self.loaded == (epoch, version, weights_digest(plain_weights(version, TENSORS, NUMEL)))

    def heard_since(self, since_s: float) -> bool:
        """A transfer failed."""
        self.take_in()
        return self.told_s["failed"] > since_s

    def is_waiting(self) -> bool:
        """In the middle of no transfer: what it was told of has come, or it was told of nothing."""
        self.take_in()
        return self.told_s["began"] <= self.told_s["over"]

    def end(self) -> None:
        self.process.kill()
        self.process.join(10)
        self.pipe.close()

    def stop(self) -> None:
        self.pipe.send("stop")
        self.process.join(10)
        assert self.process.exitcode == 0


def state_of(pid: int | None) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def struck(process: BaseProcess) -> bool:
    return process.exitcode == -signal.SIGKILL or (process.is_alive() and state_of(process.pid) == "T")


def publish(client: PublisherClient, version: int, epoch: int = 0) -> None:
    client.publish(policy(version, epoch), plain_weights(version, TENSORS, NUMEL), wait_s=10)


def publish_until(client: PublisherClient, versions: Iterator[int], epoch: int, process: BaseProcess, followers: list[Follower]) -> int:
    """Publish until `process` is struck by what it sends or receives; returns the version that did it (or, where a sender still sent the one before
    when it was armed, the one that it did not take any more)."""
    for version in itertools.islice(versions, 8):
        try:
            publish(client, version, epoch)
        except PublisherGone:
            eventually(lambda: struck(process), what="the publisher is gone because it was struck")
            return version
        eventually(lambda version=version: struck(process) or all(f.has((epoch, version)) for f in followers), 20, f"{version} came, or struck")
        with contextlib.suppress(AssertionError):
            eventually(lambda: struck(process), 0.7)
            return version
    raise AssertionError("8 versions were sent, and no bucket struck")


@pytest.mark.parametrize(("stroke", "spare"), STRUCK)
def test_a_receiver_struck_at_any_bucket_costs_the_others_a_pull_and_they_form_a_group_again(stroke: signal.Signals, spare: int) -> None:
    reports: list[SyncReport] = []
    with running_publisher(bucket_bytes=4096, on_sync=reports.append, group_timeout_s=GROUP_TIMEOUT_S) as publisher:
        client = PublisherClient(publisher.endpoint)
        survivors = [Follower(publisher.endpoint, f"survivor-{i}", spare=spare) for i in range(2)]
        versions, broken = itertools.count(), 0
        for at in range(1, BUCKETS + 1):
            victim = Follower(publisher.endpoint, f"victim-{at}", at, stroke)
            eventually(lambda: len(publisher._fanout.members) == 3, what="the victim joined")
            version = publish_until(client, versions, 0, victim.process, survivors)
            for survivor in survivors:
                survivor.await_version(0, version, HEARD_S)
            eventually(lambda version=version: reports and reports[-1].weights.version == version, HEARD_S, "the sender heard of it, or was through")
            broken += bool(reports[-1].error)
            if stroke == signal.SIGSTOP and at % 2:
                assert victim.process.pid
                os.kill(victim.process.pid, signal.SIGCONT)
                victim.await_version(0, version)
            victim.end()
            publisher.death_notice(victim.member)
            eventually(lambda: len(publisher._fanout.members) == 2)
            form_again(client, versions, reports, survivors)
        assert broken >= BUCKETS // 2, "strokes hit broadcasts that were under way: only of the last buckets the sender may know nothing"
        for survivor in survivors:
            survivor.stop()
        client.close()


def form_again(client: PublisherClient, versions: Iterator[int], reports: list[SyncReport], survivors: list[Follower]) -> None:
    for version in itertools.islice(versions, 5):
        publish(client, version)
        for survivor in survivors:
            survivor.await_version(0, version)
        eventually(lambda version=version: reports[-1].weights.version == version, HEARD_S, "the next broadcast ended")
        if not reports[-1].error:
            return
    raise AssertionError(f"survivors formed no group in 5 versions: {reports[-1].error}")


def serve(bind: str, epoch: int, at: int, stroke: signal.Signals, members: int, armed: Event, pipe: Connection) -> None:
    """A publisher that strikes itself at bucket `at` of what it sends once `armed`. Says its endpoint, then when `members` receivers follow it."""
    strike_at(at, stroke, armed)
    publisher = Publisher("policy", epoch=epoch, bind=bind, bucket_bytes=4096, group_timeout_s=GROUP_TIMEOUT_S)
    threading.Thread(target=publisher.run, args=(threading.Event(),), daemon=True).start()
    pipe.send(publisher.endpoint)
    eventually(lambda: len(publisher._fanout.members) >= members, 40, what="receivers follow")
    pipe.send("followed")
    while pipe.poll(120):
        publisher.death_notice(pipe.recv())


class Sender:
    """A publisher in a process of its own, and the trainer's connection to it."""

    def __init__(self, bind: str, epoch: int, at: int = 0, stroke: signal.Signals = signal.SIGKILL, members: int = 2) -> None:
        self.epoch, self.armed = epoch, FORK.Event()
        self.pipe, theirs = FORK.Pipe()
        self.process = start(serve, bind, epoch, at, stroke, members, self.armed, theirs)
        theirs.close()
        assert self.pipe.poll(20), "the publisher is up"
        self.endpoint: str = self.pipe.recv()
        self.client = PublisherClient(self.endpoint, reply_s=5.0)

    def await_followers(self) -> None:
        assert self.pipe.poll(40), "receivers find the successor"
        self.pipe.recv()

    def end(self) -> None:
        self.process.kill()
        self.process.join(10)
        self.client.close()
        self.pipe.close()


@pytest.mark.parametrize(("stroke", "spare"), STRUCK)
def test_a_sender_struck_at_any_bucket_is_heard_of_the_old_weights_serve_and_its_successor_brings_the_newest(
    stroke: signal.Signals, spare: int
) -> None:
    """Each publisher brings a version to all and is struck at one more bucket than the one before; its successor listens at its place."""
    bind, survivors, heard = "tcp://127.0.0.1:0", [], 0
    for life in range(BUCKETS):
        sender = Sender(bind, life, life + 1, stroke)
        bind, versions = sender.endpoint, itertools.count()
        survivors = survivors or [Follower(bind, f"survivor-{i}", spare=spare) for i in range(2)]
        sender.await_followers()
        publish(sender.client, next(versions), life)
        for survivor in survivors:
            survivor.await_version(life, 0)
        sender.armed.set()
        since_s = time.monotonic()
        version = publish_until(sender.client, versions, life, sender.process, survivors)
        for (
            survivor
        ) in survivors:  # it heard, or had all of it, or was told of nothing yet; what it serves is whole (see `loaded`), and never nothing
            eventually(lambda s=survivor, b=since_s: s.heard_since(b) or s.is_waiting(), HEARD_S, f"{survivor.member} heard")
            heard += survivor.heard_since(since_s)
            assert survivor.has((life, version - 1))
        sender.end()
    assert heard >= BUCKETS, "strokes hit broadcasts that were under way: only the last buckets may have been there already"
    last = Sender(bind, BUCKETS)
    last.await_followers()
    publish(last.client, 99, BUCKETS)
    for survivor in survivors:
        survivor.await_version(BUCKETS, 99)
        survivor.stop()
    last.end()


def test_fifty_random_kills_of_sender_and_receivers_end_with_the_newest_bytes_at_everyone() -> None:
    """One history: again and again the sender or one of its receivers dies at a random bucket, and another takes its place."""
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    draw, names, versions = random.Random(seed), itertools.count(), itertools.count()
    sender = Sender("tcp://127.0.0.1:0", 0, draw.randint(1, BUCKETS), members=2)
    steady = [Follower(sender.endpoint, f"steady-{i}") for i in range(2)]
    sender.await_followers()
    publish(sender.client, next(versions))
    kills = {"sender": 0, "receiver": 0}
    while sum(kills.values()) < RANDOM_KILLS:
        kind = draw.choice(list(kills))
        if kind == "sender":
            sender.armed.set()
            publish_until(sender.client, versions, sender.epoch, sender.process, steady)
            sender.end()
            sender = Sender(sender.endpoint, sender.epoch + 1, draw.randint(1, BUCKETS))
            sender.await_followers()
        else:
            mortal = Follower(sender.endpoint, f"mortal-{next(names)}", draw.randint(1, BUCKETS))
            eventually(lambda mortal=mortal: mortal.has((0, 0)), 20, "it has joined")
            publish_until(sender.client, versions, sender.epoch, mortal.process, steady)
            sender.pipe.send(mortal.member)  # or the slot that it had mapped is held until its lease ends, 10 s
            mortal.end()
        kills[kind] += 1
        version = next(versions)
        publish(sender.client, version, sender.epoch)
        for follower in steady:
            follower.await_version(sender.epoch, version)
    for follower in steady:
        follower.stop()
    sender.end()
    print(kills)
    assert min(kills.values()) >= 5


def train_and_lose(rank: int, endpoint: str, version: int, victim: int, at: int) -> str:
    """Three ranks publish `version` together; rank `victim` dies when the root has read `at` tensors (-1: nobody). What each was told."""
    mesh = init_device_mesh("cpu", (3,))
    wholes = dict(plain_weights(version, 6, 999))
    state = {name: DTensor.from_local(whole.chunk(3)[rank].clone(), mesh, [Shard(0)], run_check=False) for name, whole in wholes.items()}
    pids = [torch.zeros(1, dtype=torch.int64) for _ in range(3)]
    dist.all_gather(pids, torch.tensor([os.getpid()]))
    if rank == 0 and at >= 0:
        _strike_while_read(int(pids[victim].item()), at)
    client = PublisherClient(endpoint, member=f"trainer#{version}") if rank == 0 else None
    sharded = ShardedClient(ShardedWalk(lambda: state, prefetch=0, timeout_s=20.0), client)
    try:
        assert sharded.publish(policy(version), 10)
    except WalkBroken as error:
        return str(error)
    if client is not None:
        client.wait_published(policy(version), 10)
    return ""


def _strike_while_read(pid: int, at: int) -> None:
    """By what the trainer's client calls for each tensor that it copies out."""
    import checkpoint_engine.copy_out as module

    read, plain = [0], module.TensorMeta

    def meta(*arguments: Any) -> Any:
        if read[0] == at:
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: state_of(pid) in "ZX")
        read[0] += 1
        return plain(*arguments)

    module.TensorMeta = meta  # type: ignore[misc,assignment]


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("at", [0, 2, 4])
def test_a_trainer_rank_killed_in_the_middle_of_a_walk_leaves_the_old_weights_serving_and_others_go_on(victim: int, at: int) -> None:
    with running_publisher(bucket_bytes=4096) as publisher:
        receiver = Receiver("r", publisher.endpoint)
        assert run_ranks(3, train_and_lose, publisher.endpoint, 0, 0, -1) == ["", "", ""]
        old = eventually(receiver.latest)
        answers = run_ranks(3, train_and_lose, publisher.endpoint, 1, victim, at)
        assert answers[victim] == DIED
        assert all(answer and answer != DIED for rank, answer in enumerate(answers) if rank != victim), answers
        assert publisher.published == receiver.latest() == old == WeightsId("policy", 0, 0, old.digest)
        assert run_ranks(3, train_and_lose, publisher.endpoint, 2, 0, -1) == ["", "", ""]
        eventually(lambda: receiver.latest() != old)
        with receiver.get_weights() as held:
            assert held.weights.version == 2
            assert [(name, bits(tensor)) for name, tensor in held] == [(name, bits(tensor)) for name, tensor in plain_weights(2, 6, 999)]
        receiver.close()
