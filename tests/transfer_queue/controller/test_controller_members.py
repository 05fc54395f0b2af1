"""Members: incarnations, heartbeats, ends of every kind, and the desired state that they watch."""

from __future__ import annotations

import msgspec
from controller_desk import Desk, plain, train_step
from controller_messages import put_rows

from transfer_queue import messages as m


def test_a_new_incarnation_ends_the_leases_and_requests_of_the_old_one() -> None:
    desk = Desk(plain(batch=2, staleness=0))
    desk.prompts(2)
    old = desk.join("rollout-0")
    lease = desk.pull(old)[0]
    parked = desk.send(old.connection, m.Watch(seen=10_000, **old.fields))
    new = desk.join("rollout-0")
    assert (old.incarnation, new.incarnation) == (0, 1)
    assert desk.core.sweeps == [(None, "rollout-0#0")]
    assert desk.core.live_blocks(0) == [1, 2]
    assert desk.pull(new)[0].gid == lease.gid
    assert "#1" in desk.refuse(old.connection, put_rows([desk.row(lease)], topic="t", **old.fields), "stale_incarnation")
    assert desk.freed() == [3], "the bytes of a refused message are freed"
    refusal = desk.replies[parked]
    assert isinstance(refusal, m.ErrorReply)
    assert refusal.code == "stale_incarnation", "who was only thought dead must not wait for its deadline"
    desk.refuse(old.connection, m.Watch(**old.fields), "stale_incarnation")
    desk.refuse(b"x", m.Leave(member="nobody", incarnation=0), "unknown_member")


def test_a_silent_member_is_dead_after_the_heartbeat_and_any_message_keeps_it_alive() -> None:
    desk = Desk(plain(), heartbeat_s=10.0, lease_s=100.0)
    desk.prompts(2)
    rollout, quiet = desk.join("rollout-0"), desk.join("rollout-1")
    lease = desk.pull(quiet)[0]
    desk.wait(9.0)
    desk.progress(rollout, lease, 1, 0)
    desk.wait(2.0)
    assert list(desk.core.status().members) == ["rollout-0#0"]
    assert [event.data["cause"] for event in desk.log.of("member") if event.reason == "died" and event.member == "rollout-1#0"] == [
        "no message for 10 s"
    ]
    assert desk.pull(rollout)[0].gid == lease.gid
    desk.refuse(quiet.connection, m.Watch(**quiet.fields), "stale_incarnation")


def test_a_death_notice_ends_the_named_incarnation_only() -> None:
    desk = Desk(plain())
    first = desk.join("rollout-0")
    desk.ask(b"x", m.MemberDead(member="rollout-0", incarnation=first.incarnation, cause="signal 9"), m.OkEmpty)
    assert not desk.core.members
    second = desk.join("rollout-0")
    for fatal in (False, True):
        desk.ask(b"x", m.MemberDead(member="rollout-0", incarnation=first.incarnation, cause="signal 9", fatal=fatal), m.OkEmpty)
    assert desk.watch(second).state == "run", "an old notice says nothing about the successor"
    desk.ask(b"x", m.MemberDead(member="rollout-0", incarnation=-1, cause="signal 9", fatal=True), m.OkEmpty)
    status = desk.core.status()
    assert (status.state, status.reason) == ("stop", "rollout-0 died: signal 9")


def test_a_fatal_notice_stops_the_run_also_when_the_heartbeat_was_faster_or_nobody_registered() -> None:
    for name in ("trainer", "publisher"):
        desk = Desk(plain(), heartbeat_s=1.0)
        desk.join("trainer", "trainer")
        desk.wait(2.0)
        desk.ask(b"x", m.MemberDead(member=name, incarnation=-1, cause="exit 1", fatal=True), m.OkEmpty)
        assert desk.core.status().reason == f"{name} died: exit 1"


def test_a_worker_that_raises_ends_the_run_with_its_name_and_traceback() -> None:
    desk = Desk(plain())
    rollout, other = desk.join("rollout-0"), desk.join("rollout-1")
    parked = desk.send(other.connection, m.Pull(topic="t", loaded=0, limit=1, **other.fields))
    watching = desk.send(other.connection, m.Watch(seen=10_000, **other.fields))
    desk.ask(rollout.connection, m.Failed(error="ValueError: no", traceback="Traceback …", **rollout.fields), m.OkEmpty)
    assert desk.replies[parked] == m.OkPulled(id=parked, groups=[], done=True)
    reply = desk.replies[desk.send(other.connection, m.Watch(**other.fields))]
    assert isinstance(reply, m.OkDirective)
    assert (reply.directive.state, reply.directive.reason) == ("stop", "rollout-0 raised: ValueError: no")
    assert [event.data["traceback"] for event in desk.log.of("run") if event.data] == ["Traceback …"]
    desk.ask(b"x", m.Stop(reason="later"), m.OkEmpty)
    assert desk.core.status().reason == "rollout-0 raised: ValueError: no", "the first reason stands"
    assert watching not in desk.replies or isinstance(desk.replies[watching], m.OkDirective)


def test_a_failure_before_registration_counts_and_one_of_an_ended_incarnation_does_not() -> None:
    desk = Desk(plain())
    old = desk.join("rollout-0")
    desk.join("rollout-0")
    desk.refuse(old.connection, m.Failed(error="x", traceback="", **old.fields), "stale_incarnation")
    assert not desk.core.stopped
    desk.ask(b"x", m.Failed(member="forward-0", incarnation=-1, error="x", traceback=""), m.OkEmpty)
    assert desk.core.status().reason == "forward-0 raised: x"


def test_a_leaving_member_gives_everything_back() -> None:
    desk = Desk(plain())
    desk.prompts(1)
    rollout = desk.join("rollout-0")
    desk.pull(rollout)
    desk.ask(rollout.connection, m.Leave(**rollout.fields), m.OkEmpty)
    assert desk.log.of("group")[-1].reason == "producer_left"
    assert not [member for member in desk.core.members if member.name == "rollout-0"]


def test_the_roster_of_shards_is_told_to_who_joins_and_the_loss_of_one_that_cannot_be_started_again_stops_the_run() -> None:
    desk = Desk(plain())
    shard = desk.join("shard-1", "shard", shard="tcp://127.0.0.1:1", server_key="k" * 40)
    desk.join("shard-0", "shard", shard="tcp://127.0.0.1:2")
    desk.join("publisher", "publisher", **{"publisher:policy": "tcp://127.0.0.1:3"})
    reply = desk.ask(b"x", m.Register(name="rollout-0", role="rollout", pid=1, host="h"), m.OkRegistered)
    assert reply.shards == [m.ShardInfo(0, "tcp://127.0.0.1:2"), m.ShardInfo(1, "tcp://127.0.0.1:1", "k" * 40)]
    assert reply.topics == [desk.spec]
    directive = desk.watch(shard)
    assert directive.endpoints == {"publisher:policy": "tcp://127.0.0.1:3"}
    assert directive.alive == ["shard-1#0", "shard-0#0", "publisher#0", "rollout-0#0"]
    assert directive.members == 4
    desk.ask(b"x", m.MemberDead(member="shard-1", incarnation=-1, cause="signal 9", fatal=True), m.OkEmpty)
    assert "shard-1 died" in desk.core.status().reason


def test_registration_refuses_what_could_not_take_part() -> None:
    desk = Desk(plain())
    good = m.Register(name="shard-0", role="shard", pid=1, host="h", endpoints={"shard": "tcp://127.0.0.1:1"})
    for change, part in (
        ({"protocol": 99}, "protocol=99"),
        ({"name": "a#1"}, "a#1"),
        ({"name": "shard"}, "trailing number"),
        ({"endpoints": {}}, "shard"),
    ):
        assert part in desk.refuse(b"x", msgspec.structs.replace(good, **change))
    assert not desk.core.members


def test_a_watch_is_answered_when_the_directive_is_newer_or_changes_or_its_time_is_over() -> None:
    desk = Desk(plain(batch=1, staleness=0))
    desk.prompts(2)
    rollout, trainer = desk.join("rollout-0"), desk.join("trainer", "trainer")
    seen = desk.watch(rollout).revision
    parked = desk.send(rollout.connection, m.Watch(seen=seen, wait_s=1.0, **rollout.fields))
    desk.wait(0.9)
    assert parked not in desk.replies
    desk.wait(0.2)
    reply = desk.replies[parked]
    assert isinstance(reply, m.OkDirective)
    assert reply.directive.revision == seen
    parked = desk.send(rollout.connection, m.Watch(seen=seen, wait_s=1.0, **rollout.fields))
    desk.publish(trainer, 0)
    reply = desk.replies[parked]
    assert isinstance(reply, m.OkDirective)
    assert reply.directive.weights == {"policy": m.ModelVersion("policy", 0, 0)}, "version 0 is a value"
    parked = desk.send(rollout.connection, m.Watch(seen=reply.directive.revision, wait_s=1.0, **rollout.fields))
    train_step(desk, desk.join("rollout-1"), trainer, 0)
    assert parked in desk.replies
    assert desk.watch(rollout).versions == {"policy": 1}


def test_only_committed_versions_are_published_and_the_newest_is_desired() -> None:
    desk = Desk(plain(batch=1, staleness=0))
    desk.prompts(3)
    rollout, trainer, publisher = desk.join("rollout-0"), desk.join("trainer", "trainer"), desk.join("publisher", "publisher")
    assert "outside [0, 0]" in desk.refuse(publisher.connection, m.Published(weights=m.ModelVersion("policy", 0, 1), **publisher.fields))
    assert "outside [0, 0]" in desk.refuse(publisher.connection, m.Published(weights=m.ModelVersion("ref", 0, 1), **publisher.fields))
    train_step(desk, rollout, trainer, 0)
    for version, epoch, desired in ((1, 0, (0, 1)), (0, 0, (0, 1)), (0, 1, (1, 0)), (1, 0, (1, 0))):
        desk.publish(publisher, version, epoch)
        weights = desk.watch(rollout).weights["policy"]
        assert (weights.epoch, weights.version) == desired
    assert [event.version for event in desk.log.of("published")] == [1, 0]


def test_cancelled_attempts_are_told_until_the_member_has_seen_them() -> None:
    desk = Desk(plain(), lease_s=5.0, heartbeat_s=100.0)
    desk.prompts(1)
    rollout = desk.join("rollout-0")
    seen = desk.watch(rollout).revision
    lease = desk.pull(rollout)[0]
    parked = desk.send(rollout.connection, m.Watch(seen=seen, wait_s=60.0, **rollout.fields))
    desk.wait(5.0)
    reply = desk.replies[parked]
    assert isinstance(reply, m.OkDirective)
    assert reply.directive.cancelled == [(lease.gid, lease.fence)]
    assert desk.watch(rollout, seen).cancelled == [(lease.gid, lease.fence)], "the first reply may have been lost"
    again = desk.pull(rollout)[0]
    assert desk.watch(rollout, reply.directive.revision).cancelled == []
    assert again.fence != lease.fence


def test_after_a_stop_everything_is_answered_at_once_and_work_in_hand_is_still_taken_in() -> None:
    desk = Desk(plain())
    desk.prompts(2)
    source, rollout, trainer = desk.join("source", "source"), desk.join("rollout-0"), desk.join("trainer", "trainer")
    lease = desk.pull(rollout)[0]
    desk.send(trainer.connection, m.Take(topic="t", consumer="trainer", limit=2, step=0, **trainer.fields))
    desk.send(source.connection, m.Demand(topic="t", wait_s=60.0, **source.fields))
    desk.ask(b"x", m.Stop(reason="ctrl-c"), m.OkEmpty)
    assert desk.ask(rollout.connection, m.Pull(topic="t", loaded=0, limit=1, **rollout.fields), m.OkPulled).done
    assert desk.take(trainer, step=0).done
    assert desk.ask(source.connection, m.Demand(topic="t", **source.fields), m.OkDemand).done
    prompt = m.PromptPut(gid=9, columns={"prompt": desk.slice()})
    assert desk.ask(source.connection, m.PutPrompts(topic="t", prompts=[prompt], cursor=10, **source.fields), m.OkPrompts).accepted == 0
    assert desk.put(rollout, lease) == []
    desk.ask(rollout.connection, m.Report(kind="x", data={"a": 1}, **rollout.fields), m.OkEmpty)
    for who in (source, rollout, trainer):
        desk.ask(who.connection, m.Leave(**who.fields), m.OkEmpty)
    assert desk.core.stopped
    assert not desk.core.members
