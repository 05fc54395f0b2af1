"""Duties: evaluation is given to one member at a time, version 0 and the final version included, and the run ends after it."""

from __future__ import annotations

import pytest
from controller_desk import Desk, Who, plain, train_step

from transfer_queue import messages as m
from transfer_queue.controller.core import Duty

EVALUATE = Duty(name="evaluate", role="rollout", model="policy", every=2)


def started(count: int | None = None, **config: object) -> tuple[Desk, Who, Who, Who]:
    desk = Desk(plain(batch=1, staleness=0), duties=[EVALUATE], **config)
    desk.prompts(9)
    if count is not None:
        desk.ask(b"x", m.ClosePrompts(topic="t", count=count), m.OkEmpty)
    return desk, desk.join("rollout-0"), desk.join("rollout-1"), desk.join("trainer", "trainer")


def step(desk: Desk, rollout: Who, trainer: Who, version: int) -> None:
    """One batch from weights of `version`, then the next version is published and loaded by this rollout."""
    train_step(desk, rollout, trainer, version)
    desk.publish(trainer, version + 1)
    desk.watch(rollout, loaded={"policy": version + 1})


def test_version_0_is_given_out_before_any_prompt_is() -> None:
    desk, one, two, trainer = started()
    pulls = [desk.send(who.connection, m.Pull(topic="t", loaded=0, limit=1, **who.fields)) for who in (one, two)]
    assert not set(pulls) & set(desk.replies), "nothing is published yet"
    desk.publish(trainer, 0)
    assert desk.watch(one).duty == "evaluate"
    assert desk.watch(two).duty is None
    assert pulls[0] not in desk.replies
    reply = desk.replies[pulls[1]]
    assert isinstance(reply, m.OkPulled)
    assert len(reply.groups) == 1, "the others go on"
    desk.watch(one, duty_done="evaluate")
    assert pulls[0] not in desk.replies, "the window is full"
    desk.put(two, reply.groups[0])
    taken = desk.take(trainer, step=0)
    desk.ask(trainer.connection, desk.commit(trainer, 0, [taken.lease]), m.OkCommitted)
    desk.watch(one, loaded={"policy": 1})
    reply = desk.replies[pulls[0]]
    assert isinstance(reply, m.OkPulled)
    assert len(reply.groups) == 1


def test_no_batch_is_handed_out_until_version_0_was_evaluated_even_if_the_evaluator_dies() -> None:
    desk, one, two, trainer = started()
    desk.publish(trainer, 0)
    assert desk.watch(one, loaded={"policy": 0}).duty == "evaluate"
    desk.put(two, desk.pull(two, loaded=0)[0])
    parked = desk.send(trainer.connection, m.Take(topic="t", consumer="trainer", limit=1, step=0, wait_s=60.0, **trainer.fields))
    desk.join("rollout-0")
    assert desk.watch(two, loaded={"policy": 0}).duty == "evaluate", "the next one takes over, with the same version"
    assert parked not in desk.replies
    desk.watch(two, loaded={"policy": 0}, duty_done="evaluate")
    reply = desk.replies[parked]
    assert isinstance(reply, m.OkTaken)
    assert reply.lease >= 0


def test_a_marked_member_gets_an_empty_reply_when_its_pull_cannot_wait() -> None:
    desk, one, _, trainer = started()
    desk.publish(trainer, 0)
    assert desk.pull(one, loaded=0) == []
    assert desk.watch(one).duty == "evaluate"


def test_a_duty_waits_for_a_member_with_the_version_and_a_dead_one_is_replaced() -> None:
    desk, one, two, trainer = started()
    desk.publish(trainer, 0)
    desk.watch(one, loaded={"policy": 0})
    desk.watch(one, duty_done="evaluate", loaded={"policy": 0})
    desk.watch(one, duty_done="evaluate", loaded={"policy": 0})
    step(desk, one, trainer, 0)
    train_step(desk, one, trainer, 1)
    desk.publish(trainer, 2)
    assert desk.watch(one, loaded={"policy": 1}).duty is None
    assert desk.watch(two, loaded={"policy": 2}).duty == "evaluate"
    assert desk.watch(one, loaded={"policy": 2}).duty is None, "one at a time"
    desk.join("rollout-1")
    assert desk.watch(one, loaded={"policy": 2}).duty == "evaluate"


def test_a_newer_duty_takes_the_place_of_one_that_nobody_began() -> None:
    desk, one, two, trainer = started()
    desk.publish(trainer, 0)
    desk.watch(one, loaded={"policy": 0})
    desk.watch(one, loaded={"policy": 0}, duty_done="evaluate")
    step(desk, one, trainer, 0)
    train_step(desk, one, trainer, 1)
    desk.publish(trainer, 2)
    assert desk.watch(two, loaded={"policy": 2}).duty == "evaluate"
    desk.watch(one, loaded={"policy": 2})
    for version in range(2, 6):
        step(desk, one, trainer, version)
    assert desk.watch(one).duty is None, "the duty of version 2 is still being done"
    desk.watch(two, loaded={"policy": 2}, duty_done="evaluate")
    assert desk.watch(one).duty == "evaluate"
    desk.watch(one, loaded={"policy": 6}, duty_done="evaluate")
    assert [event.version for event in desk.log.of("member") if event.reason.startswith("duty:")] == [0, 2, 6], "4 and 6 became one"


def test_the_run_is_complete_once_the_last_version_is_published_and_evaluated() -> None:
    desk, one, two, trainer = started(count=3)
    desk.publish(trainer, 0)
    desk.watch(one, loaded={"policy": 0})
    desk.watch(one, loaded={"policy": 0}, duty_done="evaluate")
    for version in (0, 1):
        step(desk, one, trainer, version)
    desk.watch(one, loaded={"policy": 2}, duty_done="evaluate")
    train_step(desk, one, trainer, 2)
    assert desk.topic.over
    assert desk.watch(two, loaded={"policy": 2}).duty is None
    desk.publish(trainer, 3)
    assert desk.watch(two, loaded={"policy": 2}).duty is None, "it does not have the final version"
    assert desk.watch(two, loaded={"policy": 3}).duty == "evaluate"
    assert not desk.core.stopped
    desk.watch(two, loaded={"policy": 3}, duty_done="evaluate")
    assert desk.core.status().reason == "completed"
    assert [event.version for event in desk.log.of("member") if event.reason.startswith("duty_done:")] == [0, 2, 3]


def test_a_final_version_that_was_evaluated_already_is_not_evaluated_twice() -> None:
    desk, one, _, trainer = started(count=2)
    desk.publish(trainer, 0)
    desk.watch(one, loaded={"policy": 0})
    desk.watch(one, loaded={"policy": 0}, duty_done="evaluate")
    for version in (0, 1):
        step(desk, one, trainer, version)
    assert not desk.core.stopped
    desk.watch(one, loaded={"policy": 2}, duty_done="evaluate")
    assert desk.core.status().reason == "completed"


def test_without_duties_the_run_completes_with_the_last_published_version() -> None:
    desk = Desk(plain(batch=1, staleness=0))
    desk.prompts(2)
    desk.ask(b"x", m.ClosePrompts(topic="t", count=1), m.OkEmpty)
    rollout, trainer = desk.join("rollout-0"), desk.join("trainer", "trainer")
    desk.publish(trainer, 0)
    train_step(desk, rollout, trainer, 0)
    assert not desk.core.stopped
    desk.publish(trainer, 1)
    assert desk.core.status().reason == "completed"


def test_a_duty_of_an_unknown_model_is_refused_at_start() -> None:
    with pytest.raises(ValueError, match="critic"):
        Desk(plain(), duties=[Duty(name="evaluate", role="rollout", model="critic", every=1)])
