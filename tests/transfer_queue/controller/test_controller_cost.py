"""The cost of an operation depends on its batch, not on what is stored."""

from __future__ import annotations

import time

import pytest
from controller_bench import spec
from controller_desk import Desk, Who
from controller_messages import put_rows

from transfer_queue import messages as m
from transfer_queue.controller.leases import Lease

ROUNDS, CYCLES = 7, 20


def filled(groups: int) -> tuple[Desk, Who, Who]:
    """`groups` open groups, all complete and ready for every stage that comes first."""
    desk = Desk(spec(batch=4, staleness=None, rows=2, budget_bytes=1 << 40, prompts_bound=groups + 10_000), heartbeat_s=1e9, stall_s=1e9, lease_s=1e9)
    desk.prompts(groups + ROUNDS * CYCLES * 4)
    rollout, worker = desk.join("rollout-0"), desk.join("worker", "worker")
    _produce(desk, rollout, groups)
    assert len(desk.topic.groups) == groups
    return desk, rollout, worker


def _produce(desk: Desk, rollout: Who, groups: int) -> None:
    leases = desk.pull(rollout, groups)
    rows = [desk.row(lease, row) for lease in leases for row in lease.rows]
    request = put_rows(rows, topic="policy", close={lease.gid: 2 for lease in leases}, **rollout.fields)
    desk.ask(rollout.connection, request, m.OkPut)


def _cycle(desk: Desk, rollout: Who, worker: Who) -> None:
    """Every operation of a batch once: admission, progress, put, three stages, commit, status. What is stored stays as large as it was."""
    _produce(desk, rollout, 4)
    for consumer, column, weights in (("reward", "reward", None), ("forward", "old_logprobs", desk.topic.version), ("advantage", "advantage", None)):
        limit = 4 if consumer == "advantage" else 8
        assert desk.write(worker, desk.take(worker, consumer, limit=limit, loaded=desk.topic.version), consumer, column, weights) == []
    step = desk.topic.version
    taken = desk.take(worker, step=step)
    desk.ask(worker.connection, desk.commit(worker, step, [taken.lease]), m.OkCommitted)
    desk.watch(worker)
    desk.ask(b"x", m.Status(), m.OkStatus)
    desk.freed()


def test_a_drop_looks_at_the_leases_of_its_groups_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at all that its owner has: a reader that drops what it read never answers, and its leases add up."""
    looks: list[int] = []
    look = Lease.due
    monkeypatch.setattr(Lease, "due", lambda lease: (looks.append(lease.id), look(lease))[1])
    desk, _, worker = filled(200)
    taken = [desk.take(worker, "reward", limit=2) for _ in range(200)]
    for one in taken:
        gids = sorted({row.gid for row in one.rows})
        desk.ask(worker.connection, m.DropGroups(topic="policy", gids=gids, reason="seen", **worker.fields), m.OkEmpty)
    assert len(desk.topic.groups) == 0
    assert list(dict.fromkeys(looks)) == [one.lease for one in taken]
    assert len(looks) <= 3 * len(taken)


def _seconds(groups: int) -> float:
    """Best of several rounds, so that a busy machine does not decide the test."""
    desk, rollout, worker = filled(groups)
    best = float("inf")
    for _ in range(ROUNDS):
        desk.replies.clear()
        start = time.perf_counter()
        for _ in range(CYCLES):
            _cycle(desk, rollout, worker)
        best = min(best, time.perf_counter() - start)
    assert len(desk.topic.groups) == groups
    return best


def test_operations_at_20_000_open_groups_cost_less_than_three_times_those_at_100() -> None:
    few, many = _seconds(100), _seconds(20_000)
    print(f"one batch of 4 groups through the queue: {few / CYCLES * 1e3:.2f} ms at 100 open groups, {many / CYCLES * 1e3:.2f} ms at 20,000")
    assert many < 3 * few
