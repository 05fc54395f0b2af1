"""Well-formed nonsense: values beyond every bound are refused by name, change nothing, fill nothing and end nothing."""

from __future__ import annotations

import msgspec
import pytest
from controller_desk import Desk, plain, train_step
from controller_messages import put_rows
from controller_noise import NoisyWorld
from controller_world import Settings

from transfer_queue import messages as m
from transfer_queue.controller.duties import Duty
from transfer_queue.controller.members import MAX_ENTRIES, MAX_NAMES
from transfer_queue.controller.schema import MOST_ROWS
from transfer_queue.controller.timers import Timer, Timers


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_member_that_sends_wild_values_disturbs_no_run_and_what_is_refused_changes_nothing(seed: int) -> None:
    world = NoisyWorld(Settings(seed=seed, staleness=seed - 1, total=18, policy="drop" if seed == 3 else "wait", hand_backs=0.1), chance=0.7)
    status = world.run()
    assert status.reason == "completed"
    assert len(world.trained_gids) == len(set(world.trained_gids)) == 18
    assert max(world.stalenesses) <= seed - 1
    assert world.core.live_blocks(0) == [] == world.core.live_blocks(1)
    assert min(world.refused, world.accepted) > 20


def test_a_refused_pull_takes_in_nothing_of_what_it_says() -> None:
    desk = Desk(plain(batch=1, staleness=0))
    desk.prompts(1)
    rollout = desk.join("rollout-0")
    assert "limit=0" in desk.refuse(rollout.connection, m.Pull(topic="t", loaded=0, limit=0, **rollout.fields))
    assert desk.core.members[-1].loaded == {}


def test_one_bad_item_of_a_progress_renews_no_lease() -> None:
    desk = Desk(plain(batch=2), lease_s=5.0, heartbeat_s=100.0)
    desk.prompts(2)
    rollout = desk.join("rollout-0")
    leases = desk.pull(rollout, 2)
    items = [m.ProgressItem(leases[0].gid, leases[0].fence, 5, 0), m.ProgressItem(leases[1].gid, leases[1].fence, 5, 9)]
    assert "oldest_version=9" in desk.refuse(rollout.connection, m.Progress(topic="t", items=items, **rollout.fields))
    assert desk.states() == {0: "admitted", 1: "admitted"}
    wild = [m.ProgressItem(leases[0].gid, leases[0].fence, 2**64 - 1, 0)]
    assert "tokens=" in desk.refuse(rollout.connection, m.Progress(topic="t", items=wild, **rollout.fields))
    desk.wait(5.0)
    assert [lease.gid for lease in desk.pull(rollout, 2)] == [0, 1], "both were lost"


def test_numbers_of_rows_and_tokens_gone_wild_are_refused_before_they_fill_the_memory() -> None:
    desk = Desk(plain(rows=2))
    source = desk.join("source", "source")
    wild = m.PromptPut(gid=0, columns={"prompt": desk.slice()}, rows=10**9)
    assert "rows=1000000000" in desk.refuse(source.connection, m.PutPrompts(topic="t", prompts=[wild], cursor=1, **source.fields))
    desk.prompts(1, source)
    rollout = desk.join("rollout-0")
    lease = desk.pull(rollout)[0]
    for change, part in (({"row": MOST_ROWS}, "row="), ({"tokens": -1}, "tokens=-1"), ({"tokens": 2**64 - 1}, "tokens=")):
        row = msgspec.structs.replace(desk.row(lease), **change)  # type: ignore[arg-type]
        assert part in desk.refuse(rollout.connection, put_rows([row], topic="t", **rollout.fields))
    with pytest.raises(ValueError, match="rows_per_group"):
        Desk(plain(rows=MOST_ROWS + 1))


NOWHERE = [m.Slice(0, 5, 3, 2), m.Slice(0, -1, 0, 1), m.Slice(-1, 0, 0, 1), m.Slice(0, 5, -4, 1), m.Slice(0, 2**64 - 1, 0, 1)]


@pytest.mark.parametrize("piece", NOWHERE)
def test_a_slice_that_is_no_place_is_the_writers_fault_and_found_there(piece: m.Slice) -> None:
    desk = Desk(plain())
    desk.prompts(1)
    rollout = desk.join("rollout-0")
    row = msgspec.structs.replace(desk.row(desk.pull(rollout)[0]), columns={"tokens": piece})
    assert "no place" in desk.refuse(rollout.connection, put_rows([row], topic="t", **rollout.fields))
    assert desk.topic.stored_rows == 0
    source = desk.join("source", "source")
    prompt = m.PromptPut(gid=1, columns={"prompt": piece})
    assert "no place" in desk.refuse(source.connection, m.PutPrompts(topic="t", prompts=[prompt], cursor=2, **source.fields))
    assert len(desk.topic.prompts) == 0


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"endpoints": {"shard": "nonsense"}}, "nonsense"),
        ({"endpoints": {"shard": "tcp://127.0.0.1:99999"}}, "99999"),
        ({"endpoints": {"shard": "tcp://127.0.0.1:1", "server_key": "short"}}, "short"),
        ({"name": "other-0"}, "shard-0#0"),
        ({"name": "shard-" + "9" * 20}, "at most 9 digits"),
        ({"name": "x" * 200 + "1"}, "128"),
        ({"endpoints": {"shard": "tcp://127.0.0.1:1"} | {str(i): "" for i in range(MAX_ENTRIES)}}, str(MAX_ENTRIES)),
    ],
)
def test_a_shard_that_nobody_could_reach_or_tell_apart_may_not_join(change: dict[str, object], part: str) -> None:
    desk = Desk(plain())
    desk.join("shard-0", "shard", shard="tcp://127.0.0.1:1")
    good = m.Register(name="shard-1", role="shard", pid=1, host="h", endpoints={"shard": "tcp://127.0.0.1:2"})
    assert part in desk.refuse(b"x", msgspec.structs.replace(good, **change))
    assert not desk.core.stopped
    desk.ask(b"x", good, m.OkRegistered)


def test_a_run_remembers_a_bounded_number_of_names_and_entries() -> None:
    desk = Desk(plain())
    desk.join("rollout-0")
    desk.core._run.control.members._next.update({f"n{i}": 0 for i in range(MAX_NAMES - 1)})
    assert "stable name" in desk.refuse(b"x", m.Register(name="one-more", role="r", pid=1, host="h"))
    who = desk.join("rollout-0")
    many = {str(i): "u" for i in range(MAX_ENTRIES + 1)}
    assert "endpoints" in desk.refuse(who.connection, m.Watch(endpoints=many, **who.fields))
    assert "loaded" in desk.refuse(who.connection, m.Watch(loaded=dict.fromkeys(many, 0), **who.fields))


def test_nobody_computes_with_weights_that_were_never_committed() -> None:
    desk = Desk(plain(batch=1, staleness=0))
    desk.prompts(1)
    rollout = desk.join("rollout-0")
    for request in (
        m.Pull(topic="t", loaded=1, limit=1, **rollout.fields),
        m.Watch(loaded={"policy": 2**64 - 1}, **rollout.fields),
        m.Take(topic="t", consumer="trainer", limit=1, loaded=7, step=0, **rollout.fields),
    ):
        assert "of 'policy' is outside [-1, 0]" in desk.refuse(rollout.connection, request)
    desk.watch(rollout, loaded={"policy": -1})
    assert len(desk.pull(rollout)) == 1


def test_one_version_names_one_set_of_weights() -> None:
    desk = Desk(plain())
    publisher = desk.join("publisher", "publisher")
    for digest in ("aa", "aa"):
        desk.ask(publisher.connection, m.Published(weights=m.ModelVersion("policy", 0, 0, digest), **publisher.fields), m.OkEmpty)
    other = m.Published(weights=m.ModelVersion("policy", 0, 0, "bb"), **publisher.fields)
    assert "two sets of weights" in desk.refuse(publisher.connection, other)
    assert desk.watch(publisher).weights["policy"].digest == "aa"


def test_a_duty_that_hangs_while_it_looks_busy_is_a_stall_in_the_end() -> None:
    duty = Duty(name="evaluate", role="rollout", model="policy", every=1)
    desk = Desk(plain(), duties=[duty], heartbeat_s=1e6, stall_s=20.0, duty_s=100.0)
    desk.prompts(1)
    rollout, publisher = desk.join("rollout-0"), desk.join("publisher", "publisher")
    desk.publish(publisher, 0)
    assert desk.watch(rollout, loaded={"policy": 0}).duty == "evaluate"
    seconds = 0
    while not desk.core.stopped:
        assert seconds < 200
        desk.wait(10.0)
        seconds += 10
        desk.watch(rollout, busy={"busy": float(seconds)})
    assert seconds > 100
    assert "has the duty 'evaluate'" in desk.watch(rollout).reason


def test_a_put_that_was_parked_on_a_lost_connection_leaves_no_bytes() -> None:
    desk = Desk(plain(prompts_bound=1))
    source = desk.join("source", "source")
    desk.prompts(1, source)
    put = m.PromptPut(gid=1, columns={"prompt": desk.slice()})
    desk.send(b"second", m.PutPrompts(topic="t", prompts=[put], cursor=2, **source.fields))
    desk.core.undelivered(b"second", m.OkEmpty())
    assert desk.freed() == [put.columns["prompt"].block]


def test_a_member_that_never_watches_is_told_of_a_bounded_number_of_lost_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transfer_queue.controller.desired.MAX_CANCELLED", 4)
    desk = Desk(plain(), lease_s=1.0, heartbeat_s=1e6)
    desk.prompts(1)
    rollout = desk.join("rollout-0")
    fences = []
    for _ in range(10):
        fences.append(desk.pull(rollout)[0].fence)
        desk.wait(1.0)
    assert desk.watch(rollout).cancelled == [(0, fence) for fence in fences[-4:]]


def test_groups_that_ended_leave_no_timer_behind() -> None:
    desk = Desk(plain(batch=2, staleness=0), lease_s=1e6, heartbeat_s=1e7)
    source, rollout, trainer = desk.join("source", "source"), desk.join("rollout-0"), desk.join("trainer", "trainer")
    for step in range(200):
        desk.prompts(2, source)
        train_step(desk, rollout, trainer, step)
    assert len(desk.core._runtime.timers._heap) < 150


def test_a_timer_that_is_forgotten_while_it_is_asked_is_not_counted_twice() -> None:
    timers = Timers()
    asked: list[Timer] = []
    for place in range(10):
        asked.append(timers.at(0.0, lambda place=place: timers.cancel(asked[place])))
    timers.run(1.0)
    assert timers._dead == 0
