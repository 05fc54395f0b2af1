"""Whose move it is in a run that makes no progress: each role hangs once, and the report names it, its stage, its group and since when."""

from __future__ import annotations

import pytest
from controller_stall import STALL_S, Line

from transfer_queue import messages as m
from transfer_queue.waits import render


def blamed(line: Line, stage: str, *members: str, gid: int = -1) -> str:
    """The verdict, which must name these."""
    report = line.stall()
    assert (report.blame.stage, report.blame.members, report.blame.gid) == (stage, list(members), gid), report.verdict
    assert STALL_S - 3 <= report.blame.since_s <= STALL_S + 3, report.blame
    for part in (f"stage {stage!r}", *members):
        assert part in report.verdict
    assert f"whose move: {report.verdict}" in render(report)
    return report.verdict


def test_a_source_that_hangs_is_blamed_when_no_prompt_is_left() -> None:
    line = Line().begun(prompts=2)
    line.activity["source-0"] = "busy"
    line.park(line.rollout, m.Pull, loaded=1, limit=2)
    verdict = blamed(line, "source", "source-0#0")
    assert "does not ask for more work, though 8 prompts are wanted and none waits" in verdict
    assert "source-0#0 has been busy (code of source-0) without a break for" in verdict


def test_a_rollout_that_hangs_while_it_generates_is_blamed_for_its_group() -> None:
    line = Line(rollouts=2).begun()
    line.pull(line.rollout, 1, loaded=1)
    line.activity["rollout-0"] = "busy"
    line.park(line.rollouts[1], m.Pull, loaded=1, limit=1)
    verdict = blamed(line, "rollout", "rollout-0#0", gid=2)
    assert "generates group 2 (rows [0, 1]) without a new token" in verdict
    assert "group 2 (version 1, admitted) waits for it" in verdict


@pytest.mark.parametrize("pulls", [True, False])
def test_a_rollout_that_hangs_is_blamed_also_when_its_lease_ran_out_and_it_was_handed_the_group_again(pulls: bool) -> None:
    line = Line(lease_s=25.0).begun()
    if pulls:
        line.park(line.rollout, m.Pull, loaded=1, limit=1)
        line.park(line.rollout, m.Pull, loaded=1, limit=1)
    line.pull(line.rollout, 1, loaded=1)
    line.activity["rollout-0"] = "busy"
    report = line.stall()
    assert (report.blame.stage, report.blame.members, report.blame.gid) == ("rollout", ["rollout-0#0"], 2)
    assert "made no progress within lease_s" in report.verdict


def test_a_rollout_that_hangs_in_a_load_is_blamed_and_not_the_publisher() -> None:
    line = Line().begun()
    line.trained()
    line.publish(line.publisher, 2)
    line.load(2, line.actor)
    line.activity["rollout-0"] = "paused"
    line.park_stages()
    line.park(line.trainer, m.Take, consumer="trainer", limit=2, at_least=2, step=2)
    verdict = blamed(line, "rollout", "rollout-0#0")
    assert "has not loaded version 2 of 'policy', which is published" in verdict
    assert "rollout-0#0 has been paused" in verdict


@pytest.mark.parametrize(("consumer", "before"), [("reward", ()), ("advantage", ("reward",))])
def test_a_scorer_that_hangs_in_a_compute_is_blamed_at_the_stage_it_is_at(consumer: str, before: tuple[str, ...]) -> None:
    line = Line().begun()
    line.generated()
    line.served("forward", *before)
    taken = line.take(line.scorer, consumer)
    line.activity["scorer-0"] = "busy"
    line.park(line.trainer, m.Take, consumer="trainer", limit=2, at_least=2, step=1)
    verdict = blamed(line, consumer, "scorer-0#0", gid=2)
    assert f"holds lease {taken.lease} (4 rows of groups [2, 3]) and has written nothing of it" in verdict


def test_a_member_that_hangs_with_other_rows_is_blamed_for_its_lease_though_the_oldest_group_is_free() -> None:
    line = Line().begun()
    line.generated()
    line.served("forward")
    first = line.take(line.scorer, "reward", limit=2)
    hung = line.take(line.scorer, "reward")
    line.send(line.scorer.connection, m.Release(topic="policy", consumer="reward", lease=first.lease, **line.scorer.fields))
    line.activity["scorer-0"] = "busy"
    assert f"holds lease {hung.lease} (2 rows of groups [3])" in blamed(line, "reward", "scorer-0#0", gid=3)


def test_a_stage_of_whole_groups_is_not_blamed_while_one_row_lacks_its_input() -> None:
    line = Line().begun()
    line.generated()
    line.served("forward")
    line.write(line.scorer, line.take(line.scorer, "reward", limit=1), "reward", "reward")
    line.take(line.scorer, "reward")
    line.activity["scorer-0"] = "busy"
    line.park(line.scorer, m.Take, consumer="advantage", limit=8)
    blamed(line, "reward", "scorer-0#0", gid=2)


def test_a_member_of_two_stages_is_blamed_at_the_one_it_was_given_first() -> None:
    line = Line(staleness=1).begun()
    line.generated()
    line.served("forward", "reward")
    line.pull(line.rollout, 2, loaded=1)
    line.put(line.rollout, m.GroupLease(4, line.topic.groups[4].fence, 1, [0, 1], {}), 1)
    line.wait(1.0)
    hung = line.take(line.scorer, "reward")
    line.wait(1.0)
    line.take(line.scorer, "advantage")
    report = line.stall()
    assert report.blame.stage == "reward"
    assert f"holds lease {hung.lease}" in report.verdict
    assert report.topics[0].oldest is not None
    assert report.topics[0].oldest.gid == 2


def test_a_forward_worker_that_hangs_is_blamed_and_also_when_its_lease_has_run_out() -> None:
    for lease_s, part in ((1000.0, "holds lease"), (20.0, "until it ran out after lease_s = 20 s (")):
        line = Line(lease_s=lease_s).begun()
        line.generated()
        line.served("reward", "advantage")
        taken = line.take(line.actor, "forward", loaded=1)
        line.activity["actor-0"] = "busy"
        verdict = blamed(line, "forward", "actor-0#0", gid=2)
        assert part in verdict
        assert f"lease {taken.lease}" in verdict
        assert "raise lease_s above the time that it takes" in verdict


def test_a_trainer_that_hangs_in_its_step_is_blamed_for_the_commit() -> None:
    line = Line().begun()
    line.generated()
    line.served("reward", "forward", "advantage")
    line.take(line.trainer, step=1)
    line.activity["trainer-0"] = "busy"
    line.park_stages()
    verdict = blamed(line, "trainer", "trainer-0#0", gid=2)
    assert "has the whole batch of step 1 (groups [2, 3]) and does not commit it" in verdict


def test_a_trainer_that_hangs_before_it_takes_is_blamed_for_the_take() -> None:
    line = Line().begun()
    line.generated()
    line.served("reward", "forward", "advantage")
    line.activity["trainer-0"] = "busy"
    line.park_stages()
    assert "does not ask for more work, though groups are ready for it" in blamed(line, "trainer", "trainer-0#0")


def test_a_trainer_that_hangs_between_commit_and_publish_is_blamed_with_the_publisher_second() -> None:
    line = Line().begun()
    line.trained()
    line.activity["trainer-0"] = "busy"
    line.park(line.rollout, m.Pull, loaded=1, limit=2)
    line.park_stages()
    verdict = blamed(line, "trainer", "trainer-0#0", "publisher-0#0")
    assert "trainer-0#0 (or publisher-0#0) does not come back from handing version 2 of 'policy' to the publisher" in verdict


def test_a_publisher_that_hangs_is_blamed_once_the_trainer_has_come_back() -> None:
    line = Line().begun()
    line.trained()
    line.park_all()
    assert "has not published version 2 of 'policy', which is waited for" in blamed(line, "publish", "publisher-0#0")


def test_weights_that_do_not_arrive_are_the_publishers_and_the_receiver_is_named_too() -> None:
    line = Line().begun()
    line.trained()
    line.publish(line.publisher, 2)
    line.load(2, line.actor)
    line.park_all()
    verdict = blamed(line, "publish", "publisher-0#0", "rollout-0#0")
    assert "has published version 2 of 'policy', and rollout-0#0 has not received it" in verdict


def test_a_forward_worker_that_waits_for_weights_leads_to_who_owes_them() -> None:
    line = Line(staleness=1).begun()
    lease = line.pull(line.rollout, 1, loaded=1)[0]
    line.load(0, line.actor)
    line.put(line.rollout, lease, 1)
    line.step = 1
    line.park(line.actor, m.Take, consumer="forward", limit=8, loaded=0)
    line.park(line.trainer, m.Take, consumer="trainer", limit=2, at_least=2, step=1)
    line.activity["actor-0"] = "paused"
    line.core._run.control.members.find("actor-0").loaded["policy"] = 0
    verdict = line.stall().verdict
    assert "stage 'forward': actor-0#0 has not loaded version 1 of 'policy', which is published" in verdict


@pytest.mark.parametrize("first", [True, False])
def test_an_evaluation_that_hangs_is_blamed_by_its_duty(first: bool) -> None:
    line = Line(duty=True)
    line.prompts(8, line.source)
    line.publish(line.publisher, 0)
    line.load(0)
    if not first:
        line.beat(line.rollout, duty_done="evaluate")
        line.trained()
        line.publish(line.publisher, 1)
        line.load(1)
    line.activity["rollout-0"] = "paused"
    line.park_all()
    verdict = blamed(line, "evaluate", "rollout-0#0")
    assert "has the duty 'evaluate' and takes no prompt before it is done" in verdict


def test_a_shard_that_does_not_answer_is_blamed_whatever_the_others_seem_to_wait_for() -> None:
    line = Line().begun()
    line.generated()
    line.take(line.scorer, "reward")
    line.take(line.actor, "forward", loaded=1)
    for name in ("scorer-0", "actor-0"):
        line.activity[name] = "busy"
    line.stopped.add("shard-0")
    assert "does not answer, and every stage reads its bytes" in blamed(line, "shard", "shard-0#0")


def test_a_process_that_is_stopped_is_named_as_silent_before_it_counts_as_dead() -> None:
    line = Line().begun()
    line.generated()
    line.served("reward", "advantage")
    line.take(line.actor, "forward", loaded=1)
    line.stopped.add("actor-0")
    assert "actor-0#0 was not heard of for 6" in blamed(line, "forward", "actor-0#0", gid=2)


@pytest.mark.parametrize("how", ["died", "left", "never"])
def test_a_stage_without_an_alive_worker_is_named_with_what_became_of_it(how: str) -> None:
    line = Line()
    if how == "never":
        line.ask(line.actor.connection, m.Leave(**line.actor.fields), m.OkEmpty)
        line.core._run.control.members.ended.clear()
    line.prompts(8, line.source)
    line.publish(line.publisher, 0)
    line.load(0, line.rollout)
    if how == "left":
        line.ask(line.actor.connection, m.Leave(**line.actor.fields), m.OkEmpty)
    if how == "died":
        line.ask(b"x", m.MemberDead(member="actor-0", incarnation=-1, cause="killed by SIGKILL"), m.OkEmpty)
    line.generated()
    line.served("reward", "advantage")
    expected = {
        "died": "actor-0#0 died (killed by SIGKILL) and nobody else serves the stage",
        "left": "actor-0#0 left and nobody else serves the stage",
        "never": "nobody of role 'actor' has joined, though 4 rows are ready for it",
    }
    verdict = blamed(line, "forward", *(() if how == "never" else ("actor-0#0",)), gid=0)
    assert expected[how] in verdict


def test_without_an_alive_rollout_the_group_it_lost_is_shown() -> None:
    line = Line().begun()
    line.pull(line.rollout, 1, loaded=1)
    line.ask(b"x", m.MemberDead(member="rollout-0", incarnation=-1, cause="killed by SIGKILL"), m.OkEmpty)
    line.park_stages()
    assert "rollout-0#0 died (killed by SIGKILL)" in blamed(line, "rollout", "rollout-0#0", gid=2)


def test_after_the_last_commit_a_version_that_is_not_published_is_blamed_on_its_publisher() -> None:
    line = Line()
    line.ask(b"x", m.ClosePrompts(topic="policy", count=4), m.OkEmpty)
    line.begun(prompts=4)
    line.trained()
    line.park(line.trainer, m.Take, consumer="trainer", limit=2, step=2)
    line.activity["trainer-0"] = "wait"
    assert line.topic.over
    report = line.stall()
    assert report.blame.stage in ("publish", "trainer")
    assert "publisher-0#0" in report.blame.members
    assert "version 2 of 'policy'" in report.verdict


def test_members_that_die_and_come_back_without_any_work_are_no_progress() -> None:
    """Else a worker that is killed at the same group again and again would hold a run for ever."""
    line = Line(lease_s=5.0).begun()
    for _ in range(12):
        line.pull(line.rollout, 1, loaded=1)
        line.age(6)
        line.rollouts[0] = line.rollout = line.join("rollout-0")
        line.load(1, line.rollout)
    assert line.core.stopped
    assert "its generation made no progress within lease_s" in line.core.status().reason
    assert "if the first token takes so long, raise lease_s" in line.core.status().reason


def test_halfway_to_a_stall_people_are_told_once_and_told_when_it_goes_on() -> None:
    line = Line().begun()
    lease = line.pull(line.rollout, 1, loaded=1)[0]
    line.age(29)
    assert line.watch(line.trainer).warning == ""
    line.age(2)
    warning = line.watch(line.trainer).warning
    assert warning.startswith("slow: no progress for 30.0 s of stall_s = 60 s: stage 'rollout': rollout-0#0 generates group 2")
    line.age(10)
    assert [event.reason for event in line.log.of("slow")] == [warning]
    line.progress(line.rollout, lease, 1, 1)
    line.age(20)
    assert line.watch(line.trainer).warning == ""
    line.age(20)
    assert len(line.log.of("slow")) == 2
    assert not line.core.stopped


def test_who_waits_can_be_asked_at_any_time_and_ages_outlast_the_parked_requests() -> None:
    line = Line().begun()
    line.generated()
    line.served("forward")
    line.take(line.scorer, "reward")
    for _ in range(4):
        take = line.park(line.trainer, m.Take, consumer="trainer", limit=2, at_least=2, step=1)
        line.age(5)
        line.send(line.trainer.connection, m.Cancel(target=take))
    reply = line.ask(b"x", m.Status(waits=True), m.OkStatus)
    assert reply.waits is not None
    stages = {stage.stage: stage for stage in reply.waits.topics[0].stages}
    assert stages["trainer"].waiting == {"trainer-0#0": 20.0}
    assert [(lease.member, lease.age_s, lease.rows, lease.gids) for lease in stages["reward"].leases] == [("scorer-0#0", 20.0, 4, [2, 3])]
    assert stages["forward"].progress_s == 20.0
    assert reply.waits.topics[0].admission.bound == "window"
    assert reply.waits.topics[0].oldest is not None
    assert reply.waits.topics[0].oldest.owners == ["scorer-0#0"]
    assert "trainer-0#0 waits 20.0 s" in render(reply.waits)
    assert line.ask(b"x", m.Status(), m.OkStatus).waits is None
