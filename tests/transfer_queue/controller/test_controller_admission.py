"""Prompts and permits: who may start what, and how many more prompts are wanted."""

from __future__ import annotations

import pytest
from controller_desk import Desk, plain, train_step
from hypothesis import given
from hypothesis import strategies as st

from transfer_queue import messages as m
from transfer_queue.controller.window import WindowRules


def test_permits_bound_the_open_groups_and_min_versions_rise_with_them() -> None:
    desk = Desk(plain(batch=2, staleness=1))
    desk.prompts(10)
    rollout, trainer = desk.join("rollout-0"), desk.join("trainer", "trainer")
    leases = desk.pull(rollout, 10)
    assert [lease.gid for lease in leases] == [0, 1, 2, 3]
    assert [lease.min_version for lease in leases] == [0, 0, 0, 0]
    assert desk.pull(rollout, 10) == []
    for lease in leases:
        desk.put(rollout, lease)
    taken = desk.take(trainer, step=0)
    desk.ask(trainer.connection, desk.commit(trainer, 0, [taken.lease]), m.OkCommitted)
    assert desk.pull(rollout, 10, loaded=0) == [], "v=1, k=1, 2 open: min_version is 1"
    assert [lease.min_version for lease in desk.pull(rollout, 10, loaded=1)] == [1, 1]


def test_a_pull_that_waits_for_weights_says_which_and_is_served_when_the_replica_reports_them() -> None:
    desk = Desk(plain(batch=1, staleness=0))
    desk.prompts(5)
    rollout, trainer = desk.join("rollout-0"), desk.join("trainer", "trainer")
    train_step(desk, rollout, trainer, 0)
    pull = m.Pull(topic="t", loaded=0, limit=1, **rollout.fields)
    number = desk.send(rollout.connection, pull)
    assert number not in desk.replies
    desk.watch(rollout, loaded={"policy": 1})
    reply = desk.replies[number]
    assert isinstance(reply, m.OkPulled)
    assert [lease.min_version for lease in reply.groups] == [1]
    other = desk.join("rollout-1")
    desk.put(rollout, reply.groups[0], 1)
    late = desk.send(other.connection, m.Pull(topic="t", loaded=0, limit=1, wait_s=5, **other.fields))
    taken = desk.take(trainer, step=1)
    desk.ask(trainer.connection, desk.commit(trainer, 1, [taken.lease]), m.OkCommitted)
    desk.wait(5.0)
    assert desk.replies[late] == m.OkPulled(id=late, groups=[], need_version=2)


def test_bytes_gate_admission_only_and_a_budget_below_a_batch_is_refused() -> None:
    desk = Desk(plain(batch=2, staleness=None, budget_bytes=30, group_bytes=10))
    desk.prompts(10)
    rollout = desk.join("rollout-0")
    leases = desk.pull(rollout, 10)
    assert len(leases) == 3
    assert desk.core.status().topics[0].reserved_bytes == 30
    assert desk.put(rollout, leases[0]) == []
    with pytest.raises(ValueError, match="budget_bytes=19"):
        Desk(plain(batch=2, budget_bytes=19, group_bytes=10))


def test_puts_are_idempotent_by_gid_and_store_the_cursor_with_them() -> None:
    desk = Desk(plain())
    source = desk.join("source", "source")
    puts = [m.PromptPut(gid=gid, columns={"prompt": desk.slice()}) for gid in (0, 1, 2)]
    put = m.PutPrompts(topic="t", prompts=puts, cursor=3, **source.fields)
    assert desk.ask(source.connection, put, m.OkPrompts) == m.OkPrompts(id=desk._ids, accepted=3, cursor=3)
    again = desk.ask(source.connection, put, m.OkPrompts)
    assert (again.accepted, again.cursor) == (0, 3)
    assert desk.freed() == [], "a repeat frees nothing that is stored"
    copy = m.PutPrompts(topic="t", prompts=[m.PromptPut(gid=1, columns={"prompt": m.Slice(0, 99, 0, 1)})], cursor=2, **source.fields)
    assert desk.ask(source.connection, copy, m.OkPrompts).cursor == 3
    assert desk.freed() == [99]
    assert desk.join("source", "source").incarnation == 1
    assert len(desk.pull(desk.join("rollout-0"), 9)) == 3


def test_a_put_parks_at_the_bound_until_prompts_are_admitted() -> None:
    desk = Desk(plain(prompts_bound=2))
    source, rollout = desk.join("source", "source"), desk.join("rollout-0")
    desk.prompts(2, source)
    puts = [m.PromptPut(gid=2, columns={"prompt": desk.slice()})]
    number = desk.send(source.connection, m.PutPrompts(topic="t", prompts=puts, cursor=3, **source.fields))
    assert number not in desk.replies
    desk.pull(rollout, 1)
    assert desk.replies[number] == m.OkPrompts(id=number, accepted=1, cursor=3)
    puts = [m.PromptPut(gid=3, columns={"prompt": desk.slice()})]
    number = desk.send(source.connection, m.PutPrompts(topic="t", prompts=puts, cursor=4, wait_s=1.0, **source.fields))
    desk.wait(1.0)
    assert desk.replies[number] == m.OkPrompts(id=number, accepted=0, cursor=3), "nothing was stored, not even the cursor"
    many = [m.PromptPut(gid=gid, columns={"prompt": desk.slice()}) for gid in range(4, 7)]
    assert "prompts_bound=2" in desk.refuse(source.connection, m.PutPrompts(topic="t", prompts=many, cursor=7, **source.fields))


def test_demand_is_bounded_by_room_and_once_closed_by_what_the_target_still_needs() -> None:
    desk = Desk(plain(batch=2, staleness=1, prompts_bound=3))
    source, rollout, trainer = desk.join("source", "source"), desk.join("rollout-0"), desk.join("trainer", "trainer")
    demand = m.Demand(topic="t", wait_s=0.0, **source.fields)
    assert desk.ask(source.connection, demand, m.OkDemand).wanted == 3
    desk.prompts(3, source)
    desk.ask(b"x", m.ClosePrompts(topic="t", count=4), m.OkEmpty)
    desk.ask(b"x", m.ClosePrompts(topic="t", count=4), m.OkEmpty)
    assert "count=5" in desk.refuse(b"x", m.ClosePrompts(topic="t", count=5))
    assert desk.ask(source.connection, demand, m.OkDemand).wanted == 0
    leases = desk.pull(rollout, 3)
    assert desk.ask(source.connection, demand, m.OkDemand).wanted == 1
    desk.prompts(1, source)
    number = desk.send(source.connection, m.Demand(topic="t", wait_s=60.0, **source.fields))
    assert number not in desk.replies
    desk.ask(rollout.connection, m.DropGroups(topic="t", gids=[leases[0].gid], reason="too_long", **rollout.fields), m.OkEmpty)
    assert desk.replies[number] == m.OkDemand(id=number, wanted=1, cursor=4, done=False), "a dropped group is replaced"
    desk.prompts(1, source)
    for lease in leases[1:] + desk.pull(rollout, 9):
        desk.put(rollout, lease)
    for step in (0, 1):
        taken = desk.take(trainer, step=step)
        desk.ask(trainer.connection, desk.commit(trainer, step, [taken.lease]), m.OkCommitted)
    assert desk.ledger() == {"trained": 4, "dropped:too_long": 1}
    assert desk.ask(source.connection, demand, m.OkDemand).done


def test_admission_never_exceeds_the_target() -> None:
    desk = Desk(plain(batch=2, staleness=4))
    desk.prompts(20)
    desk.ask(b"x", m.ClosePrompts(topic="t", count=3), m.OkEmpty)
    assert len(desk.pull(desk.join("rollout-0"), 20)) == 3


def test_a_closed_topic_ends_when_its_target_is_trained_and_drops_what_is_left() -> None:
    desk = Desk(plain(batch=2, staleness=1))
    desk.prompts(5)
    rollout, trainer = desk.join("rollout-0"), desk.join("trainer", "trainer")
    leases = desk.pull(rollout, 4)
    for lease in leases[:2]:
        desk.put(rollout, lease)
    taken = desk.take(trainer, step=0)
    desk.ask(trainer.connection, desk.commit(trainer, 0, [taken.lease]), m.OkCommitted)
    parked = desk.send(trainer.connection, m.Take(topic="t", consumer="trainer", limit=2, step=1, **trainer.fields))
    desk.ask(b"x", m.ClosePrompts(topic="t", count=2), m.OkEmpty)
    assert desk.ledger() == {"trained": 2, "dropped:run_end": 2}
    assert desk.replies[parked] == m.OkTaken(id=parked, version=1, done=True)
    assert desk.ask(rollout.connection, m.Pull(topic="t", loaded=1, limit=1, **rollout.fields), m.OkPulled).done
    assert desk.watch(rollout).cancelled == [(lease.gid, lease.fence) for lease in leases[2:]]
    assert desk.put(rollout, leases[2]) == [leases[2].gid]
    assert sorted(desk.freed()) == sorted(range(1, desk._blocks + 1)), "every block that was stored is freed"


@given(batch=st.integers(1, 8), staleness=st.integers(0, 5), clock=st.integers(0, 50), data=st.data())
def test_min_version_never_exceeds_the_clock(batch: int, staleness: int, clock: int, data: st.DataObject) -> None:
    window = WindowRules(m.Window(batch=batch, staleness=staleness))
    assert window.capacity is not None
    ahead = data.draw(st.integers(0, window.capacity - 1))
    assert window.has_permit(ahead)
    assert max(0, clock - staleness) <= window.min_version(clock, ahead) <= clock
    assert not window.has_permit(window.capacity)
    assert window.min_version(clock, ahead) <= window.restart_version(clock, ahead + 1, 0) <= clock
