"""Leases that ran out while their owners worked on: slow is not hung, so what is written first counts, and nothing is written or lost twice."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest
from controller_bench import spec
from controller_desk import Desk, Who
from hypothesis import given, settings
from hypothesis import strategies as st

from transfer_queue import messages as m


def started(groups: int = 2, rows: int = 2, **config: float) -> tuple[Desk, Who]:
    """Groups that are generated, and the member that made them."""
    desk = Desk(spec(batch=groups, staleness=2, rows=rows), **{"lease_s": 5.0, "heartbeat_s": 1e6, "stall_s": 60.0, **config})
    desk.prompts(groups)
    rollout = desk.join("rollout-0")
    for lease in desk.pull(rollout, groups):
        desk.put(rollout, lease)
    return desk, rollout


def test_a_compute_longer_than_its_lease_still_makes_progress() -> None:
    """The only worker of a stage needs 8 s for what it holds for 5 s: before, its result was refused for ever."""
    desk, _ = started()
    slow = desk.join("slow", "scorer")
    for _ in range(4):
        taken = desk.take(slow, "reward", limit=1)
        desk.wait(8.0)
        assert desk.write(slow, taken, "reward", "reward") == []
    assert desk.take(slow, "reward").lease == -1
    assert desk.topic.done_rows[0] == 4
    told = [event for event in desk.log.of("topic") if event.reason == "written_late"]
    assert [event.data for event in told] == [{"consumer": "reward", "rows": 1, "lease_s": 5.0, "seconds": 8.0}] * 4
    desk.wait(0.0)
    assert not desk.core.stopped


def test_two_slow_workers_do_not_take_the_rows_from_each_other_for_ever() -> None:
    desk, _ = started()
    one, two = desk.join("one", "scorer"), desk.join("two", "scorer")
    first = desk.take(one, "reward")
    desk.wait(6.0)
    second = desk.take(two, "reward")
    assert second.rows == first.rows
    desk.wait(2.0)
    assert desk.write(one, first, "reward", "reward") == [], "it was slow, and the first"
    assert desk.write(two, second, "reward", "reward") == [0, 1]
    assert desk.topic.done_rows[0] == 4
    assert desk.take(two, "reward").lease == -1


def test_rows_that_another_has_written_are_not_ready_again_when_a_lease_ends() -> None:
    for ending in ("release", "expire", "death"):
        desk, _ = started()
        one, two = desk.join("one", "scorer"), desk.join("two", "scorer")
        first = desk.take(one, "reward", limit=3)
        desk.wait(6.0)
        second = desk.take(two, "reward", limit=4)
        half = m.OkTaken(lease=first.lease, rows=first.rows[:2])
        assert desk.write(one, half, "reward", "reward") == []
        if ending == "release":
            desk.ask(two.connection, m.Release(topic="policy", consumer="reward", lease=second.lease, **two.fields), m.OkEmpty)
        elif ending == "expire":
            desk.wait(6.0)
        else:
            desk.ask(b"x", m.MemberDead(member="two", incarnation=-1, cause="killed"), m.OkEmpty)
        assert [(row.gid, row.row) for row in desk.take(one, "reward").rows] == [(1, 0), (1, 1)]


def test_of_a_write_back_only_the_rows_that_somebody_else_wrote_are_refused() -> None:
    desk, _ = started()
    one, two = desk.join("one", "scorer"), desk.join("two", "scorer")
    first = desk.take(one, "reward", limit=1)
    desk.wait(6.0)
    second = desk.take(two, "reward")
    assert desk.write(one, first, "reward", "reward") == []
    desk.freed()
    assert desk.write(two, second, "reward", "reward") == [0]
    assert len(desk.freed()) == 1, "the bytes of the one row that came twice"
    assert desk.topic.done_rows[0] == 4
    assert len(desk.take(two, "advantage").rows) == 4


def test_a_hung_owner_loses_its_lease_and_an_ended_one_may_not_write_late() -> None:
    desk, _ = started()
    one, two = desk.join("one", "scorer"), desk.join("two", "scorer")
    first = desk.take(one, "reward")
    desk.wait(6.0)
    new = desk.join("one", "scorer")
    again = msgspec.structs.replace(first)
    assert desk.write(new, again, "reward", "reward") == [0, 1], "the lease was its predecessor's"
    assert desk.write(two, desk.take(two, "reward"), "reward", "reward") == []


def test_a_late_drop_of_a_lapsed_lease_counts_unless_somebody_has_written_the_rows() -> None:
    desk, _ = started()
    one, two = desk.join("one", "scorer"), desk.join("two", "scorer")
    first = desk.take(one, "reward")
    desk.wait(6.0)
    drop = m.DropGroups(topic="policy", gids=[0], reason="reward_timeout", **one.fields)
    desk.ask(one.connection, drop, m.OkEmpty)
    assert desk.ledger() == {"complete": 1, "dropped:reward_timeout": 1}, "else a score that always takes too long would be asked for for ever"
    desk.write(two, desk.take(two, "reward"), "reward", "reward")
    desk.ask(one.connection, m.DropGroups(topic="policy", gids=[1], reason="reward_timeout", **one.fields), m.OkEmpty)
    assert desk.ledger() == {"complete": 1, "dropped:reward_timeout": 1}
    assert desk.write(one, first, "reward", "reward") == [0, 1]


@given(seed=st.integers(0, 2**32), workers=st.integers(1, 4), rows=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_whatever_lapses_every_row_is_served_exactly_once_and_no_block_is_freed_twice(seed: int, workers: int, rows: int) -> None:
    random = Random(seed)
    desk, _ = started(groups=3, rows=rows, stall_s=1e6)
    who = [desk.join(f"worker-{index}", "scorer") for index in range(workers)]
    held: dict[str, m.OkTaken] = {}
    freed: Counter[int] = Counter()
    for _ in range(200):
        worker = random.choice(who)
        desk.wait(random.uniform(0.0, 3.0))
        taken = held.pop(worker.name, None)
        consumer = "advantage" if desk.topic.done_rows[0] == 3 * rows else "reward"
        if taken is None:
            taken = desk.take(worker, consumer, limit=random.randint(1, 4))
            if taken.lease != -1 and random.random() < 0.9:
                held[worker.name] = taken
        elif random.random() < 0.8:
            width = len(taken.rows[0].columns)
            desk.write(worker, taken, "advantage" if width == 1 else "reward", "advantage" if width == 1 else "reward")
        freed.update(desk.freed())
        if desk.topic.done_rows[2] == 3 * rows:
            break
    assert desk.topic.done_rows[0] == desk.topic.done_rows[2] == 3 * rows
    assert set(freed.values()) <= {1}
    assert not freed.keys() & set(desk.core.live_blocks(0))


# ------------------------------------------------------------ drops of what a trainer has


def outside() -> m.TopicSpec:
    """A stage `filter` whose output the trainer does not wait for: it may want to drop what is already being trained."""
    topic = spec(batch=2, staleness=1, rows=1)
    column = m.Column(name="verdict", dtype="uint8", kind="scalar", producer="filter")
    consumer = m.Consumer(name="filter", inputs=("tokens",), outputs=("verdict",))
    return msgspec.structs.replace(topic, columns=(*topic.columns, column), consumers=(*topic.consumers, consumer))


def test_a_stage_cannot_drop_a_group_that_a_trainer_has_in_its_batch() -> None:
    """It left the batch short: the trainer had counted the group, its commit was refused or never came."""
    desk = Desk(outside(), lease_s=1e6, heartbeat_s=1e6)
    desk.prompts(4)
    rollout, worker, trainer = desk.join("rollout-0"), desk.join("worker", "scorer"), desk.join("trainer", "trainer")
    for lease in desk.pull(rollout, 3):
        desk.put(rollout, lease)
    for consumer, column in (("reward", "reward"), ("forward", "old_logprobs"), ("advantage", "advantage")):
        weights = 0 if consumer == "forward" else None
        desk.write(worker, desk.take(worker, consumer, loaded=weights), consumer, column, weights)
    judged = desk.take(worker, "filter")
    batch = desk.take(trainer, limit=2, step=0)
    drop = m.DropGroups(topic="policy", gids=[0, 2], reason="filtered", **worker.fields)
    desk.ask(worker.connection, drop, m.OkEmpty)
    assert desk.ledger() == {"leased": 2, "dropped:filtered": 1}, "only what the trainer does not have yet"
    assert [event.gid for event in desk.log.of("topic") if event.reason == "late"] == [0]
    desk.ask(worker.connection, m.Release(topic="policy", consumer="filter", lease=judged.lease, **worker.fields), m.OkEmpty)
    assert [row.gid for row in desk.take(worker, "filter").rows] == [1], "it is through with the group that it could not drop any more"
    desk.ask(trainer.connection, desk.commit(trainer, 0, [batch.lease]), m.OkCommitted)
    assert desk.ledger() == {"trained": 2, "dropped:filtered": 1}


def test_a_lease_that_was_taken_ahead_gets_its_whole_time_once_the_one_before_is_answered() -> None:
    """A stage takes its next rows before it computes the present ones: both in one `lease_s` would halve what a compute may take."""
    for answer in ("write", "release"):
        desk, _ = started(groups=3)
        worker, other = desk.join("worker", "scorer"), desk.join("other", "scorer")
        taken = desk.take(worker, "reward", limit=2)
        for _ in range(2):
            ahead = desk.take(worker, "reward", limit=2)
            desk.wait(4.0)
            if answer == "write":
                assert desk.write(worker, taken, "reward", "reward") == []
            else:
                desk.ask(worker.connection, m.Release(topic="policy", consumer="reward", lease=taken.lease, **worker.fields), m.OkEmpty)
                desk.write(other, desk.take(other, "reward", limit=2), "reward", "reward")
            taken = ahead
        desk.wait(4.0)
        assert desk.take(other, "reward").lease == -1, "4 s after the answer the lease still stands"
        assert desk.write(worker, taken, "reward", "reward") == []
        assert desk.topic.done_rows[0] == 6
        assert [event for event in desk.log.of("topic") if event.reason in ("lease_expired", "late")] == []


def test_answers_do_not_renew_what_the_owner_took_before() -> None:
    """Else a thread that hangs would keep its rows for as long as another thread of the member works."""
    desk, _ = started(groups=3)
    worker, other = desk.join("worker", "scorer"), desk.join("other", "scorer")
    hung = desk.take(worker, "reward", limit=2)
    desk.wait(4.0)
    assert desk.write(worker, desk.take(worker, "reward", limit=2), "reward", "reward") == []
    desk.wait(2.0)
    assert desk.take(other, "reward", limit=2).rows == hung.rows


def test_a_lease_whose_rows_another_has_written_is_not_blamed() -> None:
    """Before, the report failed in this state, and with it the run, which was only slow."""
    desk, rollout = started(groups=1)
    one, two = desk.join("one", "scorer"), desk.join("two", "scorer")
    desk.write(rollout, desk.take(rollout, "forward", loaded=0), "forward", "old_logprobs", 0)
    first = desk.take(one, "reward", limit=1)
    desk.wait(6.0)
    assert desk.take(two, "reward", limit=1).rows == first.rows
    desk.write(one, first, "reward", "reward")
    waits = desk.ask(b"x", m.Status(waits=True), m.OkStatus).waits
    assert waits is not None
    assert (waits.blame.stage, waits.blame.gid) == ("reward", 0)
    assert "does not ask for more work" in waits.verdict


def test_a_report_that_fails_does_not_end_a_run_that_is_only_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, rollout = started(stall_s=20.0)
    monkeypatch.setattr(desk.core._run, "waits", lambda: 1 / 0)
    desk.wait(10.5)
    assert not desk.core.stopped
    assert [event.reason for event in desk.log.of("run")] == ["who waits for whom could not be told: ZeroDivisionError('division by zero')"]
    assert rollout.name in [member.name for member in desk.core.members]


def renew(desk: Desk, who: Who, lease: int, within_s: float, reply: type[m.Reply] = m.OkEmpty) -> m.Reply:
    return desk.ask(who.connection, m.Renew(topic="policy", consumer="reward", lease=lease, within_s=within_s, **who.fields), reply)


def test_the_time_of_a_lease_and_of_the_next_one_stands_still_while_its_owner_starts_something() -> None:
    desk, _ = started()
    worker, other = desk.join("worker", "scorer"), desk.join("other", "scorer")
    first, ahead = desk.take(worker, "reward", limit=2), desk.take(worker, "reward", limit=2)
    desk.wait(4.0)
    renew(desk, worker, first.lease, 20.0)
    desk.wait(19.0)
    assert desk.take(other, "reward").lease == -1, "nobody else scores them meanwhile"
    renew(desk, worker, first.lease, 0.0)
    desk.wait(4.0)
    assert desk.write(worker, first, "reward", "reward") == []
    desk.wait(4.0)
    assert desk.write(worker, ahead, "reward", "reward") == []
    assert not [event for event in desk.log.of("topic") if event.reason == "written_late"]


def test_who_does_not_come_back_from_starting_something_loses_its_rows() -> None:
    desk, _ = started()
    worker, other = desk.join("worker", "scorer"), desk.join("other", "scorer")
    taken = desk.take(worker, "reward", limit=4)
    renew(desk, worker, taken.lease, 10.0)
    desk.wait(14.0)
    assert desk.take(other, "reward").lease == -1
    desk.wait(2.0)
    assert desk.take(other, "reward").rows == taken.rows, "10 s and the 5 s of a lease are over"


def test_who_goes_on_and_then_hangs_loses_its_rows_after_the_time_of_a_lease() -> None:
    desk, _ = started()
    worker, other = desk.join("worker", "scorer"), desk.join("other", "scorer")
    taken = desk.take(worker, "reward", limit=4)
    renew(desk, worker, taken.lease, 500.0)
    desk.wait(1.0)
    renew(desk, worker, taken.lease, 0.0)
    desk.wait(6.0)
    assert desk.take(other, "reward").rows == taken.rows


def test_a_lease_cannot_be_renewed_for_ever() -> None:
    desk, _ = started(stall_s=1e6)
    worker, other = desk.join("worker", "scorer"), desk.join("other", "scorer")
    taken = desk.take(worker, "reward", limit=4)
    for _ in range(70):
        renew(desk, worker, taken.lease, 10.0)
        desk.wait(9.0)
    assert desk.take(other, "reward").rows == taken.rows


@pytest.mark.parametrize("within_s", [-1.0, 601.0, float("nan"), float("inf")])
def test_a_wild_renewal_is_refused_and_changes_nothing(within_s: float) -> None:
    desk, _ = started()
    worker, other = desk.join("worker", "scorer"), desk.join("other", "scorer")
    taken = desk.take(worker, "reward", limit=4)
    error = renew(desk, worker, taken.lease, within_s, m.ErrorReply)
    assert isinstance(error, m.ErrorReply)
    assert "within_s=" in error.message
    renew(desk, other, taken.lease, 100.0)  # of somebody else's
    desk.wait(6.0)
    assert desk.take(other, "reward").rows == taken.rows
