"""Batches, the order of `wait`, the expiry of `drop`, and commits that happen once."""

from __future__ import annotations

import msgspec
import pytest
from controller_desk import Desk, Who, gids, plain, train_step

from transfer_queue import messages as m


def started(topic: m.TopicSpec, prompts: int = 20) -> tuple[Desk, Who, Who]:
    desk = Desk(topic)
    desk.prompts(prompts)
    return desk, desk.join("rollout-0"), desk.join("trainer", "trainer")


def test_the_step_must_be_the_clock() -> None:
    desk, rollout, trainer = started(plain(batch=1, staleness=1))
    train_step(desk, rollout, trainer, 0)
    assert desk.take(trainer, step=0) == m.OkTaken(id=desk._ids, version=1, batch=1), "a restarted trainer sees the clock"
    for step in (None, 2):
        assert f"step={step}" in desk.refuse(trainer.connection, m.Take(topic="t", consumer="trainer", limit=1, step=step, **trainer.fields))
    parked = desk.send(trainer.connection, m.Take(topic="t", consumer="trainer", limit=1, step=1, **trainer.fields))
    other = desk.join("trainer-b", "trainer")
    desk.ask(trainer.connection, m.Cancel(target=parked), m.OkEmpty)
    lease = desk.pull(rollout, 1, loaded=1)[0]
    desk.put(rollout, lease, 1)
    taken = desk.take(other, step=1)
    parked = desk.send(trainer.connection, m.Take(topic="t", consumer="trainer", limit=1, step=1, **trainer.fields))
    desk.ask(other.connection, desk.commit(other, 1, [taken.lease]), m.OkCommitted)
    assert desk.replies[parked] == m.OkTaken(id=parked, version=2, batch=1), "parked for a step that is over"


def test_a_batch_is_handed_out_in_parts_and_never_beyond_its_size() -> None:
    desk, rollout, trainer = started(plain(batch=3, staleness=1))
    for lease in desk.pull(rollout, 5):
        desk.put(rollout, lease)
    first = desk.take(trainer, step=0, limit=2)
    assert (gids(first), first.batch) == ([0, 1], 3)
    second = desk.take(trainer, step=0, limit=9, at_least=5)
    assert gids(second) == [2], "the batch needs fewer than at_least"
    assert desk.take(trainer, step=0).lease == -1
    committed = desk.ask(trainer.connection, desk.commit(trainer, 0, [first.lease, second.lease]), m.OkCommitted)
    assert (committed.version, committed.trained, committed.done) == (1, 3, False)


def test_a_terminal_take_gets_at_least_what_it_asked_for_or_nothing() -> None:
    desk, rollout, trainer = started(plain(batch=3, staleness=1))
    leases = desk.pull(rollout, 3)
    desk.put(rollout, leases[0])
    parked = desk.send(trainer.connection, m.Take(topic="t", consumer="trainer", limit=3, at_least=3, step=0, wait_s=5.0, **trainer.fields))
    desk.put(rollout, leases[2])
    desk.wait(5.0)
    assert desk.replies[parked] == m.OkTaken(id=parked, version=0, batch=3)
    assert set(desk.states().values()) == {"admitted", "complete"}
    parked = desk.send(trainer.connection, m.Take(topic="t", consumer="trainer", limit=3, at_least=3, step=0, **trainer.fields))
    desk.put(rollout, leases[1])
    reply = desk.replies[parked]
    assert isinstance(reply, m.OkTaken)
    assert gids(reply) == [0, 1, 2], "in canonical order"


def test_only_the_last_batch_of_a_run_is_short() -> None:
    desk, rollout, trainer = started(plain(batch=2, staleness=0))
    desk.ask(b"x", m.ClosePrompts(topic="t", count=3), m.OkEmpty)
    train_step(desk, rollout, trainer, 0)
    leases = desk.pull(rollout, 9, loaded=1)
    assert len(leases) == 1
    desk.put(rollout, leases[0], 1)
    taken = desk.take(trainer, step=1, at_least=2)
    assert (gids(taken), taken.batch) == ([2], 1)
    assert desk.ask(trainer.connection, desk.commit(trainer, 1, [taken.lease]), m.OkCommitted).done


def test_a_commit_is_idempotent_even_after_later_ones_and_from_a_new_incarnation() -> None:
    desk, rollout, trainer = started(plain(batch=1, staleness=0))
    lease = desk.pull(rollout)[0]
    desk.put(rollout, lease)
    commit = desk.commit(trainer, 0, [desk.take(trainer, step=0).lease])
    for _ in range(2):
        assert desk.ask(trainer.connection, commit, m.OkCommitted).version == 1
    train_step(desk, rollout, trainer, 1)
    again = desk.join("trainer", "trainer")
    assert desk.ask(again.connection, msgspec.structs.replace(commit, **again.fields), m.OkCommitted).version == 1
    assert desk.topic.version == 2
    assert len(desk.log.of("commit")) == 2
    assert "epoch" in desk.refuse(again.connection, msgspec.structs.replace(commit, epoch=1, **again.fields))
    desk.refuse(trainer.connection, commit, "stale_incarnation")


def test_a_commit_that_is_not_exactly_the_batch_changes_nothing() -> None:
    desk, rollout, trainer = started(plain(batch=2, staleness=1))
    for lease in desk.pull(rollout, 4):
        desk.put(rollout, lease)
    one = desk.take(trainer, step=0, limit=1)
    two = desk.take(trainer, step=0, limit=1)
    before = desk.ledger()
    for commit in (
        desk.commit(trainer, 0, [one.lease]),
        desk.commit(trainer, 0, []),
        desk.commit(trainer, 0, [one.lease, 99]),
        desk.commit(trainer, 1, [one.lease, two.lease]),
        desk.commit(trainer, 0, [one.lease, two.lease], model="critic"),
        desk.commit(trainer, 0, [one.lease, two.lease], consumer="nobody"),
    ):
        desk.refuse(trainer.connection, commit)
    assert desk.ledger() == before == {"complete": 2, "leased": 2}
    assert desk.topic.version == 0
    desk.ask(trainer.connection, desk.commit(trainer, 0, [two.lease, one.lease]), m.OkCommitted)
    assert desk.ledger() == {"complete": 2, "trained": 2}


def test_a_terminal_lease_outlives_every_timeout_and_ends_with_its_incarnation() -> None:
    desk, rollout, trainer = started(plain(batch=1, staleness=0))
    desk.put(rollout, desk.pull(rollout)[0])
    old = desk.take(trainer, step=0)
    for _ in range(50):
        desk.wait(5.0)
        desk.watch(trainer)
        desk.watch(rollout)
        desk.ask(trainer.connection, m.Report(kind="alive", data={}, **trainer.fields), m.OkEmpty)
    assert desk.states() == {0: "leased"}
    again = desk.join("trainer", "trainer")
    assert desk.states() == {0: "complete"}
    new = desk.take(again, step=0)
    assert new.rows == old.rows
    assert "not a current lease" in desk.refuse(again.connection, desk.commit(again, 0, [old.lease]))
    desk.ask(again.connection, desk.commit(again, 0, [new.lease]), m.OkCommitted)
    assert desk.ledger() == {"trained": 1}


def test_wait_takes_a_newer_group_only_when_no_older_one_remains_outside_the_batch() -> None:
    desk, rollout, trainer = started(plain(batch=2, staleness=1))
    straggler, other, third = desk.pull(rollout, 3)
    desk.put(rollout, other)
    desk.put(rollout, third)
    taken = desk.take(trainer, step=0)
    assert gids(taken) == [1, 2], "the straggler is of the same version: it need not be waited for"
    desk.ask(trainer.connection, desk.commit(trainer, 0, [taken.lease]), m.OkCommitted)
    newer = desk.pull(rollout, 3, loaded=1)
    assert [lease.min_version for lease in newer] == [0, 1, 1]
    for lease in newer:
        desk.put(rollout, lease, 1)
    assert desk.take(trainer, step=1).lease == -1
    parked = desk.send(trainer.connection, m.Take(topic="t", consumer="trainer", limit=2, at_least=2, step=1, **trainer.fields))
    desk.progress(rollout, straggler, 1, 0)
    assert parked not in desk.replies
    desk.put(rollout, straggler, 0)
    reply = desk.replies[parked]
    assert isinstance(reply, m.OkTaken)
    assert gids(reply) == [0, 3], "a batch may mix versions"
    desk.ask(trainer.connection, desk.commit(trainer, 1, [reply.lease]), m.OkCommitted)
    ages = [event.data["age"] for event in desk.log.of("group") if event.dst == "trained"]
    assert ages == [0, 0, 1, 0]


def test_a_straggler_whose_tokens_are_new_does_not_hold_others_back() -> None:
    desk, rollout, trainer = started(plain(batch=1, staleness=1))
    slow, quick = desk.pull(rollout, 2)
    desk.put(rollout, quick)
    taken = desk.take(trainer, step=0)
    desk.ask(trainer.connection, desk.commit(trainer, 0, [taken.lease]), m.OkCommitted)
    newer = desk.pull(rollout, 1, loaded=1)[0]
    desk.put(rollout, newer, 1)
    parked = desk.send(trainer.connection, m.Take(topic="t", consumer="trainer", limit=1, step=1, **trainer.fields))
    assert parked not in desk.replies, "without a token the slow one counts as old as it may become"
    desk.progress(rollout, slow, 1, 1)
    assert isinstance(desk.replies[parked], m.OkTaken)


def test_without_a_bound_nothing_waits_for_older_groups() -> None:
    desk, rollout, trainer = started(plain(batch=1, staleness=None))
    slow, quick = desk.pull(rollout, 2)
    desk.put(rollout, quick)
    assert gids(desk.take(trainer, step=0)) == [quick.gid]
    assert slow.min_version == 0


@pytest.mark.parametrize("requeue", [False, True])
def test_drop_expires_what_started_too_early_at_commit_and_replaces_it(requeue: bool) -> None:
    desk = Desk(plain(batch=1, staleness=1, policy="drop", requeue=requeue))
    source = desk.join("source", "source")
    desk.prompts(4, source)
    desk.ask(b"x", m.ClosePrompts(topic="t", count=4), m.OkEmpty)
    rollout, trainer = desk.join("rollout-0"), desk.join("trainer", "trainer")
    slow = desk.pull(rollout)[0]
    desk.progress(rollout, slow, 7, 0)
    train_step(desk, rollout, trainer, 0)
    assert desk.states() == {0: "generating"}, "version 0 is within v - k = 0"
    train_step(desk, rollout, trainer, 1)
    assert desk.ledger() == {"trained": 2, "dropped:stale": 1}
    event = next(event for event in desk.log.of("group") if event.reason == "stale")
    assert (event.data["age"], event.data["tokens"], event.data["clock"]) == (2, 7, 2)
    assert desk.watch(rollout).cancelled == [(0, slow.fence)]
    assert desk.put(rollout, slow) == [0]
    wanted = desk.ask(source.connection, m.Demand(topic="t", wait_s=0.0, **source.fields), m.OkDemand).wanted
    assert wanted == (0 if requeue else 1)
    leases = desk.pull(rollout, 9, loaded=2)
    assert [lease.gid for lease in leases] == ([0, 3] if requeue else [3])
    if requeue:
        assert leases[0].fence != slow.fence
        assert leases[0].columns == slow.columns, "its shared columns were kept"
        assert desk.log.of("group")[-2].data["life"] == 1
    else:
        assert slow.columns["prompt"].block in desk.freed()


def test_drop_counts_a_handed_out_group_as_started_with_the_weights_of_its_holder() -> None:
    desk, rollout, trainer = started(plain(batch=1, staleness=1, policy="drop"))
    idle = desk.pull(rollout)[0]
    train_step(desk, rollout, trainer, 0)
    assert desk.states() == {idle.gid: "admitted"}
    train_step(desk, rollout, trainer, 1)
    assert desk.ledger() == {"trained": 2, "dropped:stale": 1}


def test_drop_counts_a_group_from_the_weights_that_make_its_first_token() -> None:
    """Permits come back at a commit, before its weights arrive: what is handed out in between may have no token when they do."""
    desk, rollout, trainer = started(plain(batch=1, staleness=2, policy="drop"))
    early, begun = desk.pull(rollout, 2)
    train_step(desk, rollout, trainer, 0)
    desk.progress(rollout, early, 0, 1)
    desk.progress(rollout, begun, 1, 0)
    ahead = m.Progress(topic="t", items=[m.ProgressItem(early.gid, early.fence, 0, 2)], **rollout.fields)
    assert "oldest_version=2" in desk.refuse(rollout.connection, ahead)
    train_step(desk, rollout, trainer, 1)
    train_step(desk, rollout, trainer, 2)
    assert desk.states() == {early.gid: "admitted"}
    assert desk.ledger() == {"admitted": 1, "trained": 3, "dropped:stale": 1}
    for known in (1, 0, None):
        desk.progress(rollout, early, 0, known)
    assert desk.topic.groups[early.gid].started_version() == 1
    train_step(desk, rollout, trainer, 3)
    assert desk.ledger() == {"trained": 4, "dropped:stale": 2}


def test_drop_keeps_what_waits_for_a_producer_since_it_will_start_from_new_weights() -> None:
    desk, rollout, trainer = started(plain(batch=1, staleness=1, policy="drop"))
    lost = desk.join("rollout-1")
    waiting = desk.pull(lost)[0]
    first = desk.pull(rollout)[0]
    for step, lease in ((0, first), (1, None)):
        lease = lease or desk.pull(rollout, 1, loaded=step)[0]
        desk.put(rollout, lease, step)
        if step == 1:
            desk.join("rollout-1")
        taken = desk.take(trainer, step=step)
        desk.ask(trainer.connection, desk.commit(trainer, step, [taken.lease]), m.OkCommitted)
    assert desk.ledger() == {"admitted": 1, "trained": 2}
    again = desk.pull(rollout, 1, loaded=2)[0]
    assert (again.gid, again.min_version) == (waiting.gid, 1)


def test_every_terminal_consumer_must_acknowledge_before_a_permit_comes_back() -> None:
    topic = plain(batch=1, staleness=0)
    critic = msgspec.structs.replace(topic.consumers[0], name="critic")
    desk, rollout, trainer = started(msgspec.structs.replace(topic, consumers=(*topic.consumers, critic)))
    desk.ask(b"x", m.ClosePrompts(topic="t", count=2), m.OkEmpty)
    desk.put(rollout, desk.pull(rollout)[0])
    actor = desk.take(trainer, step=0)
    desk.take(trainer, "critic", step=0)
    desk.ask(trainer.connection, desk.commit(trainer, 0, [actor.lease]), m.OkCommitted)
    assert desk.states() == {0: "leased"}
    assert desk.pull(rollout, 1, loaded=1) == []
    trainer = desk.join("trainer", "trainer")
    assert desk.states() == {0: "complete"}
    value = desk.take(trainer, "critic", step=0)
    desk.ask(trainer.connection, m.DropGroups(topic="t", gids=[0], reason="late", **trainer.fields), m.OkEmpty)
    assert desk.states() == {0: "leased"}, "what one consumer trained can no longer be dropped"
    desk.ask(trainer.connection, desk.commit(trainer, 0, [value.lease], "critic", "critic"), m.OkCommitted)
    assert desk.ledger() == {"trained": 1}
    assert len(desk.pull(rollout, 1, loaded=1)) == 1
    assert desk.watch(trainer).versions == {"policy": 1, "critic": 1}


def test_a_trainer_may_drop_a_group_of_its_batch_and_gets_another() -> None:
    desk, rollout, trainer = started(plain(batch=2, staleness=1))
    for lease in desk.pull(rollout, 3):
        desk.put(rollout, lease)
    first = desk.take(trainer, step=0)
    desk.ask(trainer.connection, m.DropGroups(topic="t", gids=[1], reason="nan", **trainer.fields), m.OkEmpty)
    desk.refuse(trainer.connection, desk.commit(trainer, 0, [first.lease]))
    second = desk.take(trainer, step=0)
    assert gids(second) == [2]
    desk.ask(trainer.connection, desk.commit(trainer, 0, [first.lease, second.lease]), m.OkCommitted)
    assert desk.ledger() == {"trained": 2, "dropped:nan": 1}
