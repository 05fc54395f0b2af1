"""Consumers: a row is handed out when its inputs are there, to nobody twice, under a lease that ends in an acknowledgement or in another hand-out."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from controller_bench import spec
from controller_desk import Desk, Who, gids, plain, train_step
from controller_messages import blocks, put_rows, write_back
from hypothesis import given, settings
from hypothesis import strategies as st

from transfer_queue import messages as m
from transfer_queue.controller.readiness import ReadySet
from transfer_queue.controller.store import keys_of


def stages(groups: int = 2, **config: object) -> tuple[Desk, Who, Who]:
    """A desk with `groups` groups of 2 rows, put and closed by rollout-0, and a worker that can be any stage."""
    desk = Desk(spec(batch=2, staleness=1), **config)
    desk.prompts(groups)
    rollout = desk.join("rollout-0")
    for lease in desk.pull(rollout, groups):
        desk.put(rollout, lease)
    return desk, rollout, desk.join("worker", "worker")


def test_a_consumer_gets_a_row_when_all_its_inputs_are_there_and_never_twice() -> None:
    desk, _, worker = stages()
    assert desk.take(worker, "advantage").lease == -1
    taken = desk.take(worker, "reward", limit=3)
    assert [(row.gid, row.row) for row in taken.rows] == [(0, 0), (0, 1), (1, 0)]
    shared = taken.rows[0].columns[0]
    assert shared is not None
    assert shared == taken.rows[1].columns[0] != taken.rows[2].columns[0]
    assert desk.write(worker, taken, "reward", "reward") == []
    ready = desk.take(worker, "advantage")
    assert gids(ready) == [0], "a whole group, and only once all its rows are there"
    assert len(ready.rows) == 2
    rest = desk.take(worker, "reward")
    assert [(row.gid, row.row) for row in rest.rows] == [(1, 1)]
    assert desk.take(worker, "reward").lease == -1
    status = {consumer.name: consumer for consumer in desk.core.status().topics[0].consumers}
    assert (status["reward"].done_rows, status["reward"].leased_rows, status["reward"].ready_rows) == (3, 1, 0)
    assert (status["forward"].ready_rows, status["advantage"].leased_rows) == (4, 2)


def test_rows_of_an_unfinished_group_are_served_one_by_one_but_the_group_only_when_closed() -> None:
    desk = Desk(spec(batch=1))
    desk.prompts(1)
    rollout, worker = desk.join("rollout-0"), desk.join("worker", "worker")
    lease = desk.pull(rollout)[0]
    desk.ask(rollout.connection, put_rows([desk.row(lease, 0)], topic="policy", **rollout.fields), m.OkPut)
    desk.write(worker, desk.take(worker, "reward"), "reward", "reward")
    assert desk.take(worker, "advantage").lease == -1
    desk.ask(rollout.connection, put_rows([], topic="policy", close={0: 1}, **rollout.fields), m.OkPut)
    assert gids(desk.take(worker, "advantage")) == [0]


def test_weights_bound_what_a_forward_worker_gets() -> None:
    desk = Desk(spec(batch=1, staleness=2, rows=1))
    desk.prompts(3)
    rollout, worker, trainer = desk.join("rollout-0"), desk.join("worker", "worker"), desk.join("trainer", "trainer")
    one, two = desk.pull(rollout, 2)
    desk.put(rollout, one)
    desk.write(worker, desk.take(worker, "reward"), "reward", "reward")
    desk.write(worker, desk.take(worker, "forward", loaded=0), "forward", "old_logprobs", weights=0)
    desk.write(worker, desk.take(worker, "advantage"), "advantage", "advantage")
    taken = desk.take(trainer, step=0)
    desk.ask(trainer.connection, desk.commit(trainer, 0, [taken.lease]), m.OkCommitted)
    desk.put(rollout, two, 0, newest=1)
    assert "loaded=None" in desk.refuse(worker.connection, m.Take(topic="policy", consumer="forward", limit=1, **worker.fields))
    assert desk.take(worker, "forward", loaded=0).lease == -1
    parked = desk.send(worker.connection, m.Take(topic="policy", consumer="forward", limit=1, loaded=0, **worker.fields))
    desk.watch(worker, loaded={"policy": 1})
    reply = desk.replies[parked]
    assert isinstance(reply, m.OkTaken)
    assert (reply.rows[0].newest_version, reply.version) == (1, 1)
    old = write_back(
        topic="policy",
        consumer="forward",
        lease=reply.lease,
        columns={"old_logprobs": [desk.slice()]},
        keys=[(1, 0)],
        weights=m.ModelVersion("policy", 0, 0),
        **worker.fields,
    )
    for weights in (None, old.weights, m.ModelVersion("policy", 0, 2), m.ModelVersion("critic", 0, 1)):
        assert "of 'policy' with a version in [1, 1]" in desk.refuse(worker.connection, msgspec.structs.replace(old, weights=weights))
    assert desk.write(worker, reply, "forward", "old_logprobs", weights=1) == []


def test_an_expired_lease_is_handed_out_again_and_of_two_write_backs_the_first_is_taken_in_and_the_other_refused_whole() -> None:
    desk, _, worker = stages(lease_s=5.0, heartbeat_s=100.0)
    old = desk.take(worker, "reward")
    desk.wait(4.0)
    desk.watch(worker)
    desk.wait(1.0)
    new = desk.take(worker, "reward")
    assert new.lease != old.lease
    assert new.rows == old.rows
    desk.freed()
    assert desk.write(worker, old, "reward", "reward") == [], "its owner was slow, not hung"
    assert desk.freed() == []
    assert desk.write(worker, new, "reward", "reward") == [0, 1]
    assert len(desk.freed()) == 4
    for lease in (old, new):
        assert desk.write(worker, lease, "reward", "reward") == [0, 1], "a lease is acknowledged once"
    assert desk.take(worker, "reward").lease == -1


def test_a_lease_is_good_in_the_hands_of_its_owner_only() -> None:
    desk, _, worker = stages()
    taken, thief = desk.take(worker, "reward"), desk.join("thief", "worker")
    assert desk.write(thief, taken, "reward", "reward") == [0, 1]
    desk.ask(thief.connection, m.Release(topic="policy", consumer="reward", lease=taken.lease, **thief.fields), m.OkEmpty)
    assert desk.take(thief, "reward").lease == -1
    assert desk.write(worker, taken, "reward", "reward") == []


def test_a_release_and_a_death_make_leased_rows_ready_again() -> None:
    desk, _, worker = stages()
    first = desk.take(worker, "reward", limit=1)
    desk.ask(worker.connection, m.Release(topic="policy", consumer="reward", lease=first.lease, **worker.fields), m.OkEmpty)
    desk.ask(worker.connection, m.Release(topic="policy", consumer="reward", lease=first.lease, **worker.fields), m.OkEmpty)
    second = desk.take(worker, "reward", limit=1)
    assert second.rows == first.rows
    parked = desk.send(worker.connection, m.Take(topic="policy", consumer="advantage", limit=1, **worker.fields))
    other = desk.join("worker", "worker")
    third = desk.take(other, "reward")
    assert [(row.gid, row.row) for row in third.rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    desk.write(other, third, "reward", "reward")
    refusal = desk.replies[parked]
    assert isinstance(refusal, m.ErrorReply)
    assert refusal.code == "stale_incarnation", "a dead member's request competes with nobody"
    assert gids(desk.take(other, "advantage")) == [0, 1]
    desk.refuse(worker.connection, m.Take(topic="policy", consumer="reward", limit=1, **worker.fields), "stale_incarnation")


def test_a_partial_write_back_gives_the_rest_back() -> None:
    desk, _, worker = stages()
    taken = desk.take(worker, "reward")
    half = m.OkTaken(lease=taken.lease, rows=taken.rows[:3])
    assert desk.write(worker, half, "reward", "reward") == []
    assert [(row.gid, row.row) for row in desk.take(worker, "reward").rows] == [(1, 1)]
    group = desk.take(worker, "advantage")
    assert "whole groups" in desk.refuse(
        worker.connection,
        write_back(topic="policy", consumer="advantage", lease=group.lease, columns={"advantage": [desk.slice()]}, keys=[(0, 0)], **worker.fields),
    )


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"columns": {}}, "missing"),
        ({"columns": {"reward": []}}, "0 slices for 1 keys"),
        ({"columns": {"reward": [m.Slice(0, 900, 0, 1)], "tokens": [m.Slice(0, 901, 0, 1)]}}, "'tokens'"),
        ({"keys": [(7, 0)]}, "not in that lease"),
        ({"consumer": "nobody"}, "nobody"),
        ({"consumer": "trainer"}, "terminal"),
    ],
)
def test_a_write_back_that_breaks_a_rule_changes_nothing_and_its_slices_are_freed(change: dict[str, object], part: str) -> None:
    desk, _, worker = stages()
    taken = desk.take(worker, "reward", limit=1)
    good: dict[str, Any] = {"consumer": "reward", "columns": {"reward": [m.Slice(0, 900, 0, 1)]}, "keys": [(0, 0)]}
    broken = {**good, **change}
    assert part in desk.refuse(worker.connection, write_back(topic="policy", lease=taken.lease, **broken, **worker.fields))
    assert sorted(desk.freed()) == blocks(broken["columns"])
    assert desk.ask(worker.connection, write_back(topic="policy", lease=taken.lease, **good, **worker.fields), m.OkWritten).closed == []


def test_a_group_that_is_dropped_while_leased_comes_back_closed() -> None:
    desk, _, worker = stages()
    taken = desk.take(worker, "reward")
    desk.ask(worker.connection, m.DropGroups(topic="policy", gids=[0], reason="timeout", **worker.fields), m.OkEmpty)
    assert desk.write(worker, taken, "reward", "reward") == [0]
    assert gids(desk.take(worker, "advantage")) == [1]
    assert desk.ledger() == {"complete": 1, "dropped:timeout": 1}


def test_a_take_parks_until_it_can_have_enough_or_its_time_is_over() -> None:
    desk = Desk(spec(batch=2, staleness=1, rows=1))
    desk.prompts(3)
    rollout, worker = desk.join("rollout-0"), desk.join("worker", "worker")
    leases = desk.pull(rollout, 3)
    take = m.Take(topic="policy", consumer="reward", limit=4, at_least=2, wait_s=5.0, **worker.fields)
    first = desk.send(worker.connection, take)
    desk.put(rollout, leases[0])
    assert first not in desk.replies
    desk.put(rollout, leases[1])
    reply = desk.replies[first]
    assert isinstance(reply, m.OkTaken)
    assert gids(reply) == [0, 1]
    second = desk.send(worker.connection, take)
    desk.put(rollout, leases[2])
    desk.wait(4.9)
    assert second not in desk.replies
    desk.wait(0.2)
    reply = desk.replies[second]
    assert isinstance(reply, m.OkTaken)
    assert gids(reply) == [2], "the last rows may be fewer than hoped for"
    third = desk.send(worker.connection, take)
    cancel = desk.send(worker.connection, m.Cancel(target=third))
    assert desk.replies[third] == m.OkTaken(id=third)
    assert desk.replies[cancel] == m.OkEmpty(id=cancel)
    desk.ask(worker.connection, m.Cancel(target=third), m.OkEmpty)


def test_oldest_first_serves_by_group_version_and_in_order_by_gid() -> None:
    for sampler, expected in (("oldest_first", [2, 3, 1]), ("in_order", [1, 2, 3])):
        desk = Desk(plain(batch=1, staleness=5, policy="drop", sampler=sampler))  # type: ignore[arg-type]
        desk.prompts(9)
        rollout, trainer = desk.join("rollout-0"), desk.join("trainer", "trainer")
        train_step(desk, rollout, trainer, 0)
        one, two, three = desk.pull(rollout, 3, loaded=1)
        desk.put(rollout, two, 0)
        desk.put(rollout, three, 0, newest=1)
        desk.put(rollout, one, 1)
        order = []
        for step in (1, 2, 3):
            taken = desk.take(trainer, step=step)
            order += gids(taken)
            desk.ask(trainer.connection, desk.commit(trainer, step, [taken.lease]), m.OkCommitted)
        assert order == expected


@given(data=st.data(), by_version=st.booleans(), gated=st.booleans(), chunk=st.sampled_from([2, 3, 1024]))
@settings(max_examples=100, deadline=None)
def test_a_ready_set_agrees_with_a_sorted_list(data: st.DataObject, by_version: bool, gated: bool, chunk: int) -> None:
    """Batches of items come, go, change their versions and are taken. Slot of item (gid, row): its key + 1000."""
    ready, model = ReadySet(by_version=by_version, gated=gated), set[int]()
    keys = [int(key) for gid in range(6) for key in keys_of(np.array([gid]), np.arange(2))]
    newest = {key: data.draw(st.integers(0, 3)) for key in keys}
    versions = dict.fromkeys(keys, 0)

    def named(chosen: set[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        array = np.array(data.draw(st.permutations(sorted(chosen))), dtype=np.int64)
        return array, np.array([versions[key] for key in array.tolist()]), np.array([newest[key] for key in array.tolist()])

    def add(chosen: set[int]) -> None:
        array, version, gate = named(chosen)
        ready.add(array, array + 1000, version, gate)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transfer_queue.controller.shelf.CHUNK", chunk)
        for _ in range(data.draw(st.integers(1, 60))):
            action = data.draw(st.sampled_from(["add", "remove", "version", "pop"]))
            chosen = data.draw(st.sets(st.sampled_from(keys)))
            if action == "add":
                add(chosen - model)
                model |= chosen
            elif action == "remove":
                ready.remove(*named(chosen & model))
                model -= chosen
            elif action == "version":
                ready.remove(*named(chosen & model))
                versions.update(dict.fromkeys(chosen, data.draw(st.integers(0, 5))))
                add(chosen & model)
            else:
                loaded, limit = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 4))
                able = sorted((key for key in model if not gated or newest[key] <= loaded), key=lambda key: (versions[key] * by_version, key))
                assert ready.count(loaded) == len(able)
                assert ready.version(loaded) == (versions[able[0]] * by_version if able else None)
                popped = (ready.pop(limit, loaded) - 1000).tolist()
                assert popped == able[:limit]
                model -= set(popped)
            assert len(ready) == len(model)
