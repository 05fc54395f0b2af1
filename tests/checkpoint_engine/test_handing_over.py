"""Every trainer rank hands a version over together: whoever stops, and wherever, the others end in step and know whether it was taken."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ce_helpers import eventually, policy, running_publisher
from sharded_ranks import DIED, FORK, run_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import checkpoint_engine.publisher_client as client_module
from checkpoint_engine import messages as m
from checkpoint_engine.digest import weights_digest
from checkpoint_engine.publisher_client import PublisherClient, PublisherGone, PublishRefused
from checkpoint_engine.sharded import ShardedClient, ShardedWalk, WalkAbandoned, WalkBroken
from checkpoint_engine.walking import Walked

TIMEOUT_S = 20.0
AT_ONCE_S = 8.0
"""Far below the deadline of the walk, far above what anything here takes."""
TENSORS = 6

State = dict[str, torch.Tensor]


def state_of(world: int) -> State:
    mesh = init_device_mesh("cpu", (world,))
    return {f"t{i}": DTensor.from_local(torch.full((8, 100), float(i)), mesh, [Shard(0)], run_check=False) for i in range(TENSORS)}


def digest_of(world: int) -> str:
    return weights_digest((f"t{i}", torch.full((8 * world, 100), float(i))) for i in range(TENSORS))


def told(call: Callable[[], object]) -> tuple[object, bool]:
    """(what it returned, or the name of what it raised; whether that was at once)"""
    began = time.monotonic()
    try:
        result = call()
    except Exception as error:
        result = type(error).__name__
    return result, time.monotonic() - began < AT_ONCE_S


def stop_everywhere(rank: int) -> list[tuple[object, bool]]:
    """The root stops after none, one, ... all of the tensors; then a walk to the end."""
    state = state_of(dist.get_world_size())
    walk = ShardedWalk(lambda: state, timeout_s=TIMEOUT_S)

    def take(stop: int) -> Callable[[Callable[[], Walked]], bool]:
        def taking(tensors: Callable[[], Walked]) -> bool:
            for read, _ in enumerate(tensors()):
                if read == stop:
                    raise KeyError("the consumer stops")
            return stop >= TENSORS

        return taking

    return [told(lambda stop=stop: walk.hand_over(take(stop))) for stop in (*range(TENSORS), TENSORS)]


def test_wherever_the_root_stops_the_others_end_at_once_with_a_name_and_walk_again() -> None:
    root, *others = run_ranks(3, stop_everywhere)
    assert root == [("KeyError", True)] * TENSORS + [(True, True)]
    for seen in others:
        assert seen == [("WalkAbandoned", True)] * TENSORS + [(True, True)]


def fail_before(rank: int, failing: int) -> list[tuple[object, bool]]:
    """One rank's state dict cannot be had, then all walk again."""
    state = state_of(dist.get_world_size())
    fails = [rank == failing]

    def source() -> State:
        if fails[0] and walked:
            raise RuntimeError("no state dict now")
        return state

    walked: list[bool] = []
    walk = ShardedWalk(source, timeout_s=TIMEOUT_S)
    walked.append(True)
    first = told(lambda: walk.hand_over(lambda tensors: bool(list(tensors()))))
    fails[0] = False
    return [first, told(lambda: walk.hand_over(lambda tensors: bool(list(tensors()))))]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_cannot_begin_tells_the_others_at_once(failing: int) -> None:
    answers = run_ranks(3, fail_before, failing)
    others = "WalkAbandoned" if failing == 0 else "WalkBroken"
    assert [first for first, _ in answers] == [("RuntimeError" if rank == failing else others, True) for rank in range(3)]
    assert [second for _, second in answers] == [(True, True)] * 3


def patch_commit(outcome: Callable[[], None]) -> None:
    """What the trainer's client does before its first `Commit`, in this rank's process."""
    plain, first = PublisherClient._ask, [True]

    def ask(client: PublisherClient, question: m.ToPublisher, *rest: Any) -> Any:
        if isinstance(question, m.Commit) and first[0]:
            first[0] = False
            outcome()
        return plain(client, question, *rest)

    client_module.PublisherClient._ask = ask  # type: ignore[method-assign,assignment]


def refuse(for_now: bool) -> Callable[[], None]:
    def outcome() -> None:
        raise PublishRefused("Commit was refused", for_now)

    return outcome


def client_of(rank: int, endpoint: str, **settings: Any) -> ShardedClient:
    state = state_of(dist.get_world_size())
    return ShardedClient(ShardedWalk(lambda: state, timeout_s=TIMEOUT_S), PublisherClient(endpoint, **settings) if rank == 0 else None)


def publish_and_flush(rank: int, endpoint: str, for_now: bool) -> list[object]:
    sharded = client_of(rank, endpoint)
    patch_commit(refuse(for_now))
    first = told(lambda: sharded.publish(policy(0), 5))
    pending = sharded.pending
    return [first, pending, told(lambda: sharded.flush(5)), sharded.pending, told(lambda: sharded.publish(policy(1), 5))]


@pytest.mark.parametrize("for_now", [True, False])
def test_a_walk_to_the_end_counts_on_no_rank_before_its_commit_was_taken(for_now: bool) -> None:
    """Refused for now: pending on every rank, and copied out by the next flush. Refused for good: an error on every rank, nothing pending."""
    with running_publisher(transport="pull") as publisher:
        root, *others = run_ranks(3, publish_and_flush, publisher.endpoint, for_now)
        published = eventually(lambda: publisher.published and publisher.published.version == 1 and publisher.published)
    assert published.digest == digest_of(3)
    rest = [(True, True), None, (True, True)]
    if for_now:
        assert [root, *others] == [[(False, True), policy(0), *rest]] * 3
    else:
        assert root == [("PublishRefused", True), None, *rest]
        assert others == [[("WalkAbandoned", True), None, *rest]] * 2


def publish_slowly(rank: int, endpoint: str, committing: Event) -> bool:
    sharded = client_of(rank, endpoint)
    patch_commit(lambda: (time.sleep(0.5), committing.set())[0])
    assert sharded.publish(policy(0), 5)
    return committing.is_set()


def test_the_other_ranks_return_no_sooner_than_the_commit_is_on_its_way() -> None:
    committing = FORK.Event()
    with running_publisher(transport="pull") as publisher:
        assert run_ranks(3, publish_slowly, publisher.endpoint, committing) == [True] * 3


def commit_slowly(rank: int, endpoint: str) -> bool:
    """Longer than a step of the walk may take: the bytes of a large model may still be on their way."""
    state = state_of(dist.get_world_size())
    walk = ShardedWalk(lambda: state, timeout_s=1.0, commit_timeout_s=20.0)
    sharded = ShardedClient(walk, PublisherClient(endpoint) if rank == 0 else None)
    patch_commit(lambda: time.sleep(2.5))
    return sharded.publish(policy(0), 5)


def test_a_commit_may_take_longer_than_a_step_of_the_walk() -> None:
    with running_publisher(transport="pull") as publisher:
        assert run_ranks(2, commit_slowly, publisher.endpoint) == [True] * 2


def flush_alone(rank: int, endpoint: str) -> tuple[str, bool]:
    sharded = client_of(rank, endpoint)
    patch_commit(refuse(for_now=True))
    assert not sharded.publish(policy(0), 5)
    error = ""
    try:
        if sharded._client is not None:
            sharded._client.flush(5)
    except RuntimeError as raised:
        error = str(raised)
    return error, sharded.flush(5)


def test_a_root_whose_client_is_flushed_without_the_others_is_told_so_and_loses_nothing() -> None:
    with running_publisher(transport="pull") as publisher:
        (root, *taken), other = run_ranks(2, flush_alone, publisher.endpoint)
        eventually(lambda: publisher.published is not None, what="the version is published")
    assert "call `flush` of ShardedClient on every rank" in root
    assert (taken, other) == ([True], ("", True))


def call_taken_what_was_not_walked(rank: int) -> object:
    state = state_of(dist.get_world_size())
    walk = ShardedWalk(lambda: state, timeout_s=TIMEOUT_S)
    return told(lambda: walk.hand_over(lambda tensors: True))


def test_a_version_that_was_not_walked_counts_as_taken_on_no_rank() -> None:
    root, *others = run_ranks(3, call_taken_what_was_not_walked)
    assert root == (RuntimeError.__name__, True)
    assert others == [(WalkAbandoned.__name__, True)] * 2


def publish_to_nobody(rank: int) -> list[object]:
    """Nobody listens: the root cannot even ask for a slot. Nothing was walked, so the version is still to be handed over, on every rank."""
    sharded = client_of(rank, "tcp://127.0.0.1:9", reply_s=0.5)
    return [told(lambda: sharded.publish(policy(3))), sharded.pending]


def test_a_version_whose_publisher_is_gone_stays_pending_on_every_rank() -> None:
    root, *others = run_ranks(3, publish_to_nobody)
    assert root == [(PublisherGone.__name__, True), policy(3)]
    assert others == [[(WalkAbandoned.__name__, True), policy(3)]] * 2


def strike(pid: int, stroke: signal.Signals) -> None:
    """Returns when that process does nothing any more: its last words must not come after."""
    os.kill(pid, stroke)
    eventually(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "TZX", what=f"{pid} is struck")


def lose(rank: int, victim: int, at: int, stroke: signal.Signals, timeout_s: float) -> tuple[str, float]:
    """The root strikes `victim` (itself too) when it has read `at` tensors; everybody tells what it saw, and how long after."""
    state = state_of(dist.get_world_size())
    pids = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(pids, torch.tensor([os.getpid()]))
    walk = ShardedWalk(lambda: state, prefetch=0, timeout_s=timeout_s)
    dist.barrier()
    began = time.monotonic()

    def take(tensors: Callable[[], Walked]) -> bool:
        nonlocal began
        for read, _ in enumerate(tensors()):
            if read == at:
                strike(int(pids[victim].item()), stroke)
                began = time.monotonic()
        return True

    try:
        walk.hand_over(take)
        error = ""
    except WalkBroken as broken:
        error = str(broken)
    took_s = time.monotonic() - began
    if walk.is_root and stroke == signal.SIGSTOP:
        os.kill(int(pids[victim].item()), signal.SIGKILL)
    return error, took_s


@pytest.mark.e2e
@pytest.mark.parametrize("at", range(TENSORS))
@pytest.mark.parametrize(("victim", "stroke"), [(2, signal.SIGKILL), (2, signal.SIGSTOP), (0, signal.SIGKILL)])
def test_a_rank_lost_at_any_tensor_is_an_error_of_all_others_at_once(victim: int, stroke: signal.Signals, at: int) -> None:
    """Killed: long before the deadline of the walk. Stopped: at the deadline of who waits for it, and at once from there on."""
    timeout_s = 1.5 if stroke == signal.SIGSTOP else TIMEOUT_S
    answers = run_ranks(4, lose, victim, at, stroke, timeout_s)
    assert answers[victim] == DIED
    for rank, answer in enumerate(answers):
        if rank != victim:
            error, took_s = answer
            assert error or at == TENSORS - 1, f"rank {rank} did not hear of it"  # after the last one everything may have been said already
            assert took_s < timeout_s + AT_ONCE_S if stroke == signal.SIGSTOP else took_s < AT_ONCE_S
