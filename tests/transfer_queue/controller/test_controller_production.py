"""Producers: progress renews, rows are put once, closes are exact, lost attempts are handed out again with what was already made."""

from __future__ import annotations

from controller_desk import Desk, plain, train_step
from controller_messages import put_rows

from transfer_queue import messages as m


def test_the_first_token_starts_a_group_and_the_last_row_completes_it() -> None:
    desk = Desk(plain(rows=2))
    desk.prompts(1)
    rollout = desk.join("rollout-0")
    lease = desk.pull(rollout)[0]
    desk.progress(rollout, lease, 0, None)
    assert desk.states() == {0: "admitted"}
    desk.progress(rollout, lease, 2, 0)
    assert desk.states() == {0: "generating"}
    desk.ask(rollout.connection, put_rows([desk.row(lease, 1)], topic="t", **rollout.fields), m.OkPut)
    assert desk.states() == {0: "generating"}
    desk.ask(rollout.connection, put_rows([desk.row(lease, 0)], topic="t", close={0: 2}, **rollout.fields), m.OkPut)
    assert desk.states() == {0: "complete"}
    assert [event.dst for event in desk.log.of("group")] == ["admitted", "generating", "complete"]


def test_a_close_must_name_exactly_the_rows_that_were_put() -> None:
    desk = Desk(plain(rows=2))
    desk.prompts(1)
    rollout = desk.join("rollout-0")
    lease = desk.pull(rollout)[0]
    for count in (0, 2, 3):
        row = desk.row(lease, 0)
        assert f"count={count}" in desk.refuse(rollout.connection, put_rows([row], topic="t", close={0: count}, **rollout.fields))
        assert desk.freed() == [row.columns["tokens"].block]
    assert desk.states() == {0: "admitted"}
    assert desk.topic.stored_rows == 0
    assert "count=0" in desk.refuse(rollout.connection, put_rows([], topic="t", close={0: 0}, **rollout.fields))
    desk.ask(rollout.connection, put_rows([desk.row(lease, 0)], topic="t", close={0: 1}, **rollout.fields), m.OkPut)
    assert desk.states() == {0: "complete"}, "fewer rows than asked for is the producer's decision"


def test_late_fenced_and_duplicate_rows_come_back_closed_are_counted_and_freed() -> None:
    desk = Desk(plain(rows=2, batch=1), lease_s=5.0, heartbeat_s=100.0)
    desk.prompts(1)
    rollout = desk.join("rollout-0")
    old = desk.pull(rollout)[0]
    desk.wait(5.0)
    new = desk.pull(rollout)[0]
    assert new.fence > old.fence
    row = desk.row(old, 0)
    assert desk.ask(rollout.connection, put_rows([row], topic="t", **rollout.fields), m.OkPut).closed == [0]
    assert desk.freed() == [row.columns["tokens"].block]
    assert desk.progress(rollout, old, 5, 0) == [0], "the fence tells two attempts of one holder apart"
    first = put_rows([desk.row(new, 0)], topic="t", **rollout.fields)
    assert desk.ask(rollout.connection, first, m.OkPut).closed == []
    assert desk.ask(rollout.connection, first, m.OkPut).closed == [0], "a (row, column) is written once"
    assert desk.freed() == [], "the repeat of a message frees nothing that its first copy stored"
    twice = put_rows([desk.row(new, 1), desk.row(new, 1)], topic="t", **rollout.fields)
    assert desk.ask(rollout.connection, twice, m.OkPut).closed == [0]
    assert len(desk.freed()) == 2
    assert desk.core.status().topics[0].late == 3
    assert [event.reason for event in desk.log.of("topic")] == ["late"] * 3


def test_one_bad_group_in_a_put_changes_nothing_and_one_late_group_does_not_touch_the_others() -> None:
    desk = Desk(plain())
    desk.prompts(2)
    rollout = desk.join("rollout-0")
    one, two = desk.pull(rollout, 2)
    desk.refuse(rollout.connection, put_rows([desk.row(one), desk.row(two)], topic="t", close={0: 1, 1: 5}, **rollout.fields))
    assert set(desk.states().values()) == {"admitted"}
    desk.ask(rollout.connection, m.DropGroups(topic="t", gids=[0], reason="tired", **rollout.fields), m.OkEmpty)
    both = put_rows([desk.row(one), desk.row(two)], topic="t", close={0: 1, 1: 1}, **rollout.fields)
    assert desk.ask(rollout.connection, both, m.OkPut).closed == [0]
    assert desk.states() == {1: "complete"}


def test_a_row_must_carry_its_columns_and_versions_within_its_lease() -> None:
    desk = Desk(plain(batch=1, staleness=0))
    desk.prompts(3)
    rollout, trainer = desk.join("rollout-0"), desk.join("trainer", "trainer")
    train_step(desk, rollout, trainer, 0)
    lease = desk.pull(rollout, 1, loaded=1)[0]
    for row, part in (
        (m.RowPut(lease.gid, lease.fence, 0, {}, 1, 1, 1), "missing"),
        (m.RowPut(lease.gid, lease.fence, 0, {"tokens": desk.slice(), "x": desk.slice()}, 1, 1, 1), "'x'"),
        (m.RowPut(lease.gid, lease.fence, -1, {"tokens": desk.slice()}, 1, 1, 1), "row=-1"),
        (desk.row(lease, 0, oldest=0), "oldest_version=0"),
        (desk.row(lease, 0, oldest=2), "oldest_version=2"),
        (desk.row(lease, 0, oldest=1, newest=2), "newest_version=2"),
        (desk.row(lease, 0, oldest=1, newest=0), "newest_version=0"),
    ):
        assert part in desk.refuse(rollout.connection, put_rows([row], topic="t", **rollout.fields))
    assert "oldest_version=0" in desk.refuse(
        rollout.connection, m.Progress(topic="t", items=[m.ProgressItem(lease.gid, lease.fence, 1, 0)], **rollout.fields)
    )
    assert desk.put(rollout, lease, 1) == []


def test_a_lease_is_renewed_by_tokens_and_not_by_messages() -> None:
    desk = Desk(plain(rows=2), lease_s=5.0, heartbeat_s=100.0)
    desk.prompts(1)
    rollout = desk.join("rollout-0")
    lease = desk.pull(rollout)[0]
    for tokens in (1, 2, 3):
        desk.wait(4.0)
        assert desk.progress(rollout, lease, tokens, 0) == []
    desk.wait(4.0)
    assert desk.progress(rollout, lease, 3, 0) == []
    desk.watch(rollout)
    desk.wait(1.0)
    assert desk.progress(rollout, lease, 4, 0) == [0], "a hung engine heartbeats and still loses its lease"
    assert desk.log.events[-1].reason == "lease_expired"
    assert (desk.log.events[-1].src, desk.log.events[-1].dst) == ("generating", "admitted")
    assert desk.watch(rollout).cancelled == [(0, lease.fence)]
    assert desk.pull(rollout)[0].rows == [0, 1]


def test_rows_outlive_their_producer_and_the_reissue_names_the_missing_ones() -> None:
    desk = Desk(plain(batch=1, staleness=1, rows=2))
    desk.prompts(1)
    rollout, other = desk.join("rollout-0"), desk.join("rollout-1")
    lease = desk.pull(rollout)[0]
    desk.ask(rollout.connection, put_rows([desk.row(lease, 1)], topic="t", **rollout.fields), m.OkPut)
    number = desk.send(other.connection, m.Pull(topic="t", loaded=0, limit=1, **other.fields))
    desk.prompts(1)
    assert number in desk.replies
    desk.ask(b"x", m.MemberDead(member="rollout-0", incarnation=-1, cause="killed"), m.OkEmpty)
    assert desk.states()[0] == "admitted"
    assert desk.log.of("group")[-1].reason == "producer_died"
    again = desk.pull(other)[0]
    assert (again.gid, again.rows) == (0, [0])
    assert desk.put(other, again) == []
    assert desk.topic.groups[0].closed
    assert len(desk.topic.groups[0].rows) == 2
    assert desk.put(desk.join("rollout-0"), again) == [0], "the dead one's fence is no good to its successor"


def test_a_group_whose_rows_are_all_there_needs_no_other_producer() -> None:
    desk = Desk(plain(rows=2))
    desk.prompts(1)
    rollout = desk.join("rollout-0")
    lease = desk.pull(rollout)[0]
    desk.ask(rollout.connection, put_rows([desk.row(lease, 0), desk.row(lease, 1)], topic="t", **rollout.fields), m.OkPut)
    desk.join("rollout-0")
    assert desk.states() == {0: "complete"}
    assert desk.log.of("group")[-1].reason == "producer_replaced"


def test_lost_groups_are_served_oldest_version_first() -> None:
    desk = Desk(plain(batch=1, staleness=3))
    desk.prompts(6)
    rollout, trainer = desk.join("rollout-0"), desk.join("trainer", "trainer")
    train_step(desk, rollout, trainer, 0)
    lost = desk.join("rollout-1")
    leases = desk.pull(lost, 3, loaded=1)
    assert [lease.min_version for lease in leases] == [0, 0, 0]
    desk.ask(lost.connection, m.Leave(**lost.fields), m.OkEmpty)
    assert [lease.gid for lease in desk.pull(rollout, 4, loaded=1)] == [1, 2, 3, 4]


def test_a_reissue_takes_its_place_in_the_window_anew() -> None:
    """max(min_version, v - k) would not do: group 1 was overtaken while its lost attempt had newer tokens, and must not start from old weights."""
    desk = Desk(plain(batch=1, staleness=1))
    desk.prompts(9)
    rollout, lagging, trainer = desk.join("rollout-0"), desk.join("rollout-1"), desk.join("trainer", "trainer")
    train_step(desk, rollout, trainer, 0)
    overtaken = desk.pull(rollout, 1, loaded=1)[0]
    assert overtaken.min_version == 0
    other = desk.pull(lagging, 1, loaded=1)[0]
    desk.progress(rollout, overtaken, 1, 1)
    desk.put(lagging, other, 1)
    taken = desk.take(trainer, step=1)
    desk.ask(trainer.connection, desk.commit(trainer, 1, [taken.lease]), m.OkCommitted)
    newest = desk.pull(lagging, 1, loaded=2)[0]
    assert newest.min_version == 2
    desk.put(lagging, newest, 2)
    assert desk.take(trainer, step=2).lease == -1, "wait: the older group comes first"
    desk.join("rollout-0")
    assert desk.pull(desk.join("rollout-2"), 1, loaded=1) == []
    again = desk.pull(lagging, 1, loaded=2)[0]
    assert (again.gid, again.min_version) == (overtaken.gid, 2)


def test_dropping_needs_a_lease_on_the_group_and_a_reason_of_ones_own() -> None:
    desk = Desk(plain())
    desk.prompts(2)
    rollout, stranger = desk.join("rollout-0"), desk.join("rollout-1")
    lease = desk.pull(rollout)[0]
    desk.ask(stranger.connection, m.DropGroups(topic="t", gids=[0, 77], reason="bored", **stranger.fields), m.OkEmpty)
    assert desk.states() == {0: "admitted"}
    assert desk.topic.late == 2
    for reason in ("", "stale", "run_end"):
        desk.refuse(rollout.connection, m.DropGroups(topic="t", gids=[0], reason=reason, **rollout.fields))
    desk.ask(rollout.connection, m.DropGroups(topic="t", gids=[0], reason="too_long", **rollout.fields), m.OkEmpty)
    assert desk.ledger() == {"dropped:too_long": 1}
    assert desk.progress(rollout, lease, 1, 0) == [0]


def test_a_row_beyond_those_that_were_asked_for_is_refused() -> None:
    desk = Desk(plain(batch=2, staleness=1, rows=2))
    desk.prompts(2)
    rollout = desk.join("rollout-0")
    lease = desk.pull(rollout)[0]
    request = put_rows([desk.row(lease, 0), desk.row(lease, 2)], topic="t", close={}, **rollout.fields)
    assert "row=2 of group 0 is outside [0, 2)" in desk.refuse(rollout.connection, request)
    assert desk.topic.stored_rows == 0
    assert not desk.put(rollout, lease)
