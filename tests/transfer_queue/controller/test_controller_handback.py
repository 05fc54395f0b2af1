"""What a producer hands back another one goes on with: tokens, versions and finished rows stay, the fence and the lease do not."""

from __future__ import annotations

import pytest
from controller_desk import Desk, Who, plain, train_step
from controller_messages import put_rows

from transfer_queue import messages as m
from transfer_queue.shard.messages import LIFE_BITS


def hand_back(desk: Desk, who: Who, lease: m.GroupLease, tokens: int, versions: tuple[int, ...] = ()) -> tuple[m.Slice | None, list[int]]:
    """`versions` of the tokens of rows that are not finished. Returns (what is left, the gids that came too late)."""
    piece = desk.slice() if versions else None
    item = m.HandedBack(lease.gid, lease.fence, tokens, min(versions, default=0), max(versions, default=0), piece)
    return piece, desk.ask(who.connection, m.HandBack(topic="t", groups=[item], **who.fields), m.OkHandedBack).closed


def test_another_replica_goes_on_with_the_tokens_and_the_rows_that_are_there() -> None:
    desk = Desk(plain(rows=2))
    desk.prompts(1)
    one, two = desk.join("rollout-0"), desk.join("rollout-1")
    lease = desk.pull(one)[0]
    desk.ask(one.connection, put_rows([desk.row(lease, 1)], topic="t", **one.fields), m.OkPut)
    left, closed = hand_back(desk, one, lease, 5, (0, 0))
    assert closed == []
    assert desk.states() == {0: "admitted"}
    assert desk.log.of("group")[-1].reason == "handed_back"
    assert desk.topic.lost_attempts == 0, "nothing was lost"
    again = desk.pull(two)[0]
    assert (again.gid, again.rows, again.left) == (0, [0], left)
    assert again.fence > lease.fence
    assert desk.progress(one, lease, 9, 0) == [0], "who handed it back has nothing of it any more"
    assert desk.put(one, lease) == [0]
    assert desk.put(two, again) == []
    assert desk.states() == {0: "complete"}


def test_a_group_without_a_token_goes_back_as_it_came() -> None:
    desk = Desk(plain())
    desk.prompts(1)
    rollout = desk.join("rollout-0")
    lease = desk.pull(rollout)[0]
    assert hand_back(desk, rollout, lease, 0) == (None, [])
    again = desk.pull(rollout)[0]
    assert (again.gid, again.left, again.min_version) == (0, None, 0)


def test_whoever_goes_on_needs_weights_as_new_as_the_last_token_and_the_version_stays_that_of_the_first() -> None:
    desk = Desk(plain(batch=1, staleness=2))
    desk.prompts(9)
    rollout, trainer = desk.join("rollout-0"), desk.join("trainer", "trainer")
    for step in range(2):
        train_step(desk, rollout, trainer, step)
    lease = desk.pull(rollout, 1, loaded=2)[0]
    assert lease.min_version == 0
    hand_back(desk, rollout, lease, 3, (0, 1, 2))
    group = desk.topic.groups[lease.gid]
    assert (group.version, group.min_version, group.started_version()) == (0, 0, 0)
    other = desk.join("rollout-1")
    assert [found.gid for found in desk.pull(other, 1, loaded=1)] != [lease.gid], "its weights are older than the last token"
    third = desk.join("rollout-2")
    again = desk.pull(third, 1, loaded=2)[0]
    assert (again.gid, again.min_version) == (lease.gid, 2)
    assert desk.put(third, again, 0, newest=2) == []
    assert group.version == 0


@pytest.mark.parametrize("requeue", [False, True])
def test_tokens_that_were_handed_back_make_a_group_stale_and_a_requeued_prompt_starts_from_its_beginning(requeue: bool) -> None:
    desk = Desk(plain(batch=1, staleness=1, policy="drop", requeue=requeue))
    desk.prompts(9)
    rollout, other, trainer = desk.join("rollout-0"), desk.join("rollout-1"), desk.join("trainer", "trainer")
    lease = desk.pull(other)[0]
    train_step(desk, rollout, trainer, 0)
    left, _ = hand_back(desk, other, lease, 2, (0, 0))
    assert desk.pull(other, 1, loaded=1)[0].left == left
    train_step(desk, rollout, trainer, 1)
    assert desk.ledger()["dropped:stale"] == 1, "whoever goes on has newer weights, but the tokens are as old as they were"
    assert left is not None
    assert left.block in desk.freed()
    again = desk.pull(other, 1, loaded=2)[0]
    assert (again.gid == lease.gid, again.left) == (requeue, None)


def test_what_is_left_outlives_the_next_attempt_and_is_freed_when_it_is_replaced_or_the_group_is_complete() -> None:
    desk = Desk(plain(rows=2), lease_s=5.0, heartbeat_s=100.0)
    desk.prompts(1)
    rollout = desk.join("rollout-0")
    first, _ = hand_back(desk, rollout, desk.pull(rollout)[0], 2, (0, 0))
    lost = desk.pull(rollout)[0]
    desk.wait(5.0)
    again = desk.pull(rollout)[0]
    assert again.left == lost.left == first
    assert desk.freed() == []
    second, _ = hand_back(desk, rollout, again, 1, (0, 0, 0))
    assert first is not None
    assert second is not None
    assert desk.freed() == [first.block]
    last = desk.pull(rollout)[0]
    assert last.left == second
    assert desk.put(rollout, last) == []
    assert desk.freed() == [second.block]


def test_late_and_wrong_hand_backs_change_nothing_and_their_bytes_are_freed() -> None:
    desk = Desk(plain(batch=1))
    desk.prompts(2)
    rollout, stranger = desk.join("rollout-0"), desk.join("rollout-1")
    one, two = desk.pull(rollout, 2)
    piece, closed = hand_back(desk, stranger, one, 1, (0,))
    assert closed == [0]
    assert piece is not None
    assert desk.freed() == [piece.block]
    assert desk.topic.late == 1
    good = m.HandedBack(two.gid, two.fence, 1, 0, 0, desk.slice())
    for bad, part in (
        (m.HandedBack(one.gid, one.fence, -1, 0, 0, desk.slice()), "tokens=-1"),
        (m.HandedBack(one.gid, one.fence, 1, 1, 1, desk.slice()), "oldest_version=1"),
        (m.HandedBack(one.gid, one.fence, 1, 0, 1, desk.slice()), "newest_version=1"),
        (m.HandedBack(one.gid, one.fence, 1, 0, 0, m.Slice(0, -4, 0, 1)), "no place"),
        (m.HandedBack(two.gid, two.fence, 1, 0, 0, desk.slice()), "twice"),
    ):
        assert part in desk.refuse(rollout.connection, m.HandBack(topic="t", groups=[good, bad], **rollout.fields))
        assert good.left is not None
        assert good.left.block in desk.freed()
        assert {group.holder for group in desk.topic.groups.values()} == {"rollout-0#0"}
    assert hand_back(desk, rollout, one, 0)[1] == []


@pytest.mark.parametrize("held", [False, True])
def test_without_the_bytes_that_are_left_the_group_starts_anew(held: bool) -> None:
    desk = Desk(plain(batch=1, staleness=1))
    shard = desk.join("shard-1", "shard", shard="tcp://127.0.0.1:9001")
    desk.prompts(3)
    rollout = desk.join("rollout-0")
    lease = desk.pull(rollout, 1)[0]
    piece = m.Slice(1, (shard.incarnation << LIFE_BITS) | 7, 0, 1)
    desk.ask(rollout.connection, m.HandBack(topic="t", groups=[m.HandedBack(0, lease.fence, 1, 0, 0, piece)], **rollout.fields), m.OkHandedBack)
    holder = desk.pull(rollout, 1)[0] if held else None
    desk.ask(b"launcher", m.MemberDead(member="shard-1", incarnation=-1, cause="killed"), m.OkEmpty)
    if holder is not None:
        assert (0, holder.fence) in desk.watch(rollout).cancelled
    again = desk.pull(rollout, 1)[0]
    assert (again.gid, again.left) == (0, None)
    assert desk.put(rollout, again) == []


def test_who_hands_back_while_the_run_drains_keeps_what_it_has_and_finishes_it() -> None:
    """Nobody would be given the group any more: it would be open for ever, and the run would count as drained."""
    desk = Desk(plain(batch=2))
    desk.prompts(2)
    rollout, stranger = desk.join("rollout-0"), desk.join("rollout-1")
    one, two = desk.pull(rollout, 2)
    desk.ask(b"launcher", m.Drain(reason="maintenance"), m.OkEmpty)
    pieces = [desk.slice(), desk.slice()]
    items = [m.HandedBack(lease.gid, lease.fence + late, 2, 0, 0, piece) for lease, late, piece in zip((one, two), (0, 99), pieces, strict=True)]
    reply = desk.ask(rollout.connection, m.HandBack(topic="t", groups=items, **rollout.fields), m.OkHandedBack)
    assert (reply.kept, reply.closed) == ([one.gid], [two.gid])
    assert sorted(desk.freed()) == sorted(piece.block for piece in pieces)
    assert {group.holder for group in desk.topic.groups.values()} == {"rollout-0#0"}
    assert not desk.core.drained
    assert desk.put(rollout, one) == desk.put(rollout, two) == []
    assert desk.states() == {0: "complete", 1: "complete"}
    assert hand_back(desk, stranger, two, 1, (0,))[1] == [two.gid], "what ended is over, whether the run drains or not"


def test_who_leaves_a_draining_run_with_a_group_leaves_it_to_the_next_run() -> None:
    desk = Desk(plain(batch=1))
    desk.prompts(1)
    rollout = desk.join("rollout-0")
    lease = desk.pull(rollout)[0]
    desk.ask(b"launcher", m.Drain(reason="maintenance"), m.OkEmpty)
    assert hand_back(desk, rollout, lease, 2, (0, 0))[1] == []
    desk.ask(rollout.connection, m.Leave(**rollout.fields), m.OkEmpty)
    assert desk.states() == {0: "admitted"}
    assert desk.core.drained
    assert desk.topic.lost_attempts == 1
