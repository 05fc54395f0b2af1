"""Groups that were trained come again, on top of a batch: how many, which, for how long, and what they are to everything else."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import pytest
from controller_desk import Desk, plain
from replay_desk import ReplayHall, again, blocks, replaying, times
from samplers_desk import gids

from transfer_queue import messages as m
from transfer_queue.controller.config import CoreConfig
from transfer_queue.controller.core import Core
from transfer_queue.controller.lots import Lots
from transfer_queue.operation.report import QueueReport
from transfer_queue.status import render, sized

TWO = m.Replay(groups=2, keep_groups=100)


def test_what_was_trained_comes_apart_on_top_of_the_next_batch_and_is_counted_apart() -> None:
    hall = ReplayHall(TWO)
    first = hall.step()
    assert (again(first), len(first.replayed)) == ([], 0), "nothing was trained before"
    hall.fill([(1, 1)] * 4)
    permits, opened = hall.core.status().topics[0].permits, hall.topic.ledger.open
    second = hall.part()
    assert gids(second) == [4, 5, 6, 7], "the batch is what it ever was"
    assert second.batch == 4
    assert set(again(second)) < set(gids(first))
    assert len(again(second)) == 2
    assert set(times(second).values()) == {0}
    assert blocks(second.replayed.rows) < blocks(first.rows), "the very bytes that were trained"
    assert (hall.core.status().topics[0].permits, hall.topic.ledger.open) == (permits, opened)
    assert (hall.told.leased, hall.told.replayed) == (2, 0)
    hall.train([second])
    assert hall.ledger() == {"trained": 8}
    assert (hall.topic.version, hall.told.leased, hall.told.replayed) == (2, 0, 2)
    told = hall.log.of("replayed")
    assert sorted(event.gid for event in told) == sorted(again(second))
    assert all(event.data == {"consumer": "trainer", "times": 1, "clock": 1} for event in told)
    assert [event.data["replayed"] for event in hall.log.of("commit")] == [0, 2]


def test_rows_come_whole_in_order_and_with_their_versions() -> None:
    hall = ReplayHall(TWO, rows=3, group_bytes=4)
    trained = list(hall.step().rows)
    replayed = list(hall.step().replayed.rows)
    assert [row.row for row in replayed] == [0, 1, 2] * 2
    for gid in {row.gid for row in replayed}:
        assert [row for row in replayed if row.gid == gid] == [row for row in trained if row.gid == gid]


def test_a_batch_in_parts_has_its_share_of_both_in_each() -> None:
    hall = ReplayHall(TWO)
    hall.step()
    hall.fill([(1, 1)] * 4)
    parts = [hall.part(limit=1) for _ in range(4)]
    assert [len(again(part)) for part in parts] == [0, 1, 0, 1]
    assert len({gid for part in parts for gid in again(part)}) == 2, "no group twice in a batch"
    hall.train(parts)
    assert hall.told.replayed == 2


def test_of_fewer_than_a_batch_may_have_each_part_has_its_share_too() -> None:
    hall = ReplayHall(m.Replay(groups=40, keep_groups=40))
    hall.step()
    hall.fill([(1, 1)] * 4)
    assert [len(again(hall.part(limit=1))) for _ in range(4)] == [1, 1, 1, 1]


# ------------------------------------------------------------ ranks


def dealt(groups: int, **options: Any) -> ReplayHall:
    """To two ranks, in parts."""
    hall = ReplayHall(m.Replay(groups=groups, keep_groups=40), train=m.Sampler("rank_aware", {"ranks": 2, "order": "in_order"}), **options)
    hall.fill([(0, 1)] * 4)
    hall.train([hall.rank(rank) for rank in (0, 1)])
    hall.fill([(1, 1)] * 4)
    return hall


def test_every_rank_has_the_same_number_whichever_comes_first() -> None:
    hall = dealt(2)
    parts = [hall.rank(rank, limit=1) for rank in (1, 0, 0, 1)]
    assert [gids(part) for part in parts] == [[5], [4], [6], [7]]
    assert [len(again(part)) for part in parts] == [0, 0, 1, 1]
    hall.train(parts)
    assert (hall.told.replayed, hall.ledger()) == (2, {"trained": 8})
    assert hall.topic.rounds[1].freeze().parts == []


def test_ranks_share_evenly_what_there_is() -> None:
    hall = dealt(20)
    parts = [hall.rank(rank) for rank in (0, 1)]
    assert [len(again(part)) for part in parts] == [2, 2]
    given_up = again(parts[0])[0]
    hall.ask(hall.trainer.connection, m.DropGroups(topic="t", gids=[given_up], reason="x", **hall.trainer.fields), m.OkEmpty)
    hall.train(parts)
    assert hall.told.replayed == 3
    hall.fill([(2, 1)] * 4)
    assert [len(again(hall.rank(rank))) for rank in (0, 1)] == [3, 3], "of seven"


def test_a_rank_that_dies_gets_its_part_again_with_as_much_on_top() -> None:
    hall = dealt(4)
    other = hall.join("other", "trainer")
    first, lost = hall.rank(0), hall.rank(1, who=other)
    assert [len(again(part)) for part in (first, lost)] == [2, 2]
    hall.ask(b"launcher", m.MemberDead(member="other", incarnation=-1, cause="killed"), m.OkEmpty)
    assert hall.told.leased == 2
    second = hall.rank(1)
    assert gids(second) == gids(lost)
    assert sorted(again(first) + again(second)) == [0, 1, 2, 3]
    hall.train([first, second])
    assert hall.told.replayed == 4


# ------------------------------------------------------------ how long


def test_there_are_no_more_than_were_kept() -> None:
    hall = ReplayHall(m.Replay(groups=10, keep_groups=10))
    hall.step()
    assert sorted(again(hall.step())) == [0, 1, 2, 3]
    assert sorted(again(hall.step())) == list(range(8))
    assert len(again(hall.step())) == 10


def test_what_a_dead_trainer_had_comes_back_and_was_not_replayed() -> None:
    hall = ReplayHall(m.Replay(groups=4, keep_groups=4))
    hall.step()
    hall.fill([(1, 1)] * 4)
    other = hall.join("other", "trainer")
    assert len(again(hall.part(limit=2, who=other))) == 2
    hall.ask(b"launcher", m.MemberDead(member="other", incarnation=-1, cause="killed"), m.OkEmpty)
    assert (hall.told.leased, hall.told.replayed) == (0, 0)
    taken = hall.part()
    assert sorted(again(taken)) == [0, 1, 2, 3]
    assert set(times(taken).values()) == {0}
    hall.ask(hall.trainer.connection, m.Release(topic="t", consumer="trainer", lease=taken.lease, **hall.trainer.fields), m.OkEmpty)
    assert hall.told.leased == 0
    taken = hall.part()
    hall.core.undelivered(b"gone", taken)
    assert (hall.told.leased, hall.states()) == (0, dict.fromkeys(range(4, 8), "complete"))


def test_a_lease_that_the_commit_does_not_name_has_replayed_nothing() -> None:
    hall = ReplayHall(m.Replay(groups=4, keep_groups=4))
    hall.step()
    hall.fill([(1, 1)] * 4)
    parts = [hall.part(limit=2) for _ in range(2)]
    hall.ask(hall.trainer.connection, m.DropGroups(topic="t", gids=gids(parts[0]), reason="tired", **hall.trainer.fields), m.OkEmpty)
    hall.fill([(1, 1)] * 2)
    parts.append(hall.part())
    assert again(parts[-1]) == [], "all four are out"
    hall.train(parts[1:])
    assert (hall.told.replayed, hall.told.leased, hall.told.kept) == (2, 0, 4)
    assert sorted(event.gid for event in hall.log.of("replayed")) == sorted(again(parts[1]))


def test_the_oldest_make_room_and_only_then_their_bytes_are_freed() -> None:
    hall = ReplayHall(m.Replay(groups=1, keep_groups=6))
    first = hall.step()
    assert blocks(first.rows) <= set(hall.core.live_blocks(0))
    assert len(hall.core.live_blocks(0)) == 4, "what the trainer does not read is freed with the commit"
    second = hall.step()
    kept = {row.columns[0].block for row in first.rows if row.gid >= 2} | blocks(second.rows)  # type: ignore[union-attr]
    assert set(hall.core.live_blocks(0)) == kept
    assert (hall.told.kept, hall.told.kept_bytes, hall.told.evicted) == (6, 6, 2)


def test_a_batch_of_more_groups_than_are_kept_leaves_its_last() -> None:
    hall = ReplayHall(m.Replay(groups=3, keep_groups=3))
    hall.step()
    assert sorted(again(hall.step())) == [1, 2, 3]
    assert hall.told.evicted == 3


def test_bytes_bound_what_is_kept_and_a_group_that_is_too_large_is_not() -> None:
    hall = ReplayHall(m.Replay(groups=2, keep_groups=100, keep_bytes=7), rows=3)
    first = hall.step()
    assert (hall.told.kept, hall.told.kept_bytes, hall.told.evicted) == (2, 6, 2)
    assert set(hall.core.live_blocks(0)) == {row.columns[0].block for row in first.rows if row.gid >= 2}  # type: ignore[union-attr]
    hall = ReplayHall(m.Replay(groups=2, keep_groups=100, keep_bytes=2), rows=3)
    hall.step()
    assert (hall.told.kept, hall.told.no_room, hall.core.live_blocks(0)) == (0, 4, [])


def test_whole_blocks_count_and_shared_ones_once() -> None:
    spec = plain(batch=1, staleness=None, group_bytes=100)
    trainer = msgspec.structs.replace(spec.consumers[0], inputs=("tokens",), replay=m.Replay(groups=1, keep_groups=9))
    optional = m.Column("note", "uint8", "blob", "rollout", optional=True)
    desk = Desk(msgspec.structs.replace(spec, consumers=(trainer,), columns=(*spec.columns, optional), rows_per_group=2))
    who = desk.join("writer")
    columns = {
        "prompt": m.packed([(0, 1, 0, 40)]),
        "tokens": m.packed([(0, 2, 0, 3), (0, 2, 3, 10)]),
        "note": m.packed([(0, 2, 10, 15), (0, 3, 0, 50)]),  # beside the tokens; in a block of its own
    }
    put = m.Put(topic="t", groups=1, rows_per_group=2, columns=columns, token=1, wait_s=0.0, **who.fields)
    desk.ask(who.connection, put, m.OkStored)
    taken = desk.take(who, step=0)
    desk.ask(who.connection, desk.commit(who, 0, [taken.lease]), m.OkCommitted)
    (status,) = desk.core.status().topics[0].consumers
    assert status.replay is not None
    assert (status.replay.kept_bytes, desk.core.live_blocks(0)) == (15, [2])


@pytest.mark.parametrize("staleness", [1, 2])
def test_what_is_too_old_for_the_window_goes_with_the_commit_that_makes_it_so(staleness: int) -> None:
    hall = ReplayHall(m.Replay(groups=50, keep_groups=50), staleness=staleness)
    made: list[m.OkTaken] = []
    for clock in range(5):
        taken = hall.step()
        made.append(taken)
        assert {row.oldest_version for row in taken.replayed.rows} == set(range(max(0, clock - staleness), clock))
        fresh = {block for past in made[max(0, clock + 1 - staleness) :] for block in blocks(past.rows)}
        assert set(hall.core.live_blocks(0)) == fresh
    assert (hall.told.kept, hall.told.expired) == (4 * staleness, 4 * (5 - staleness))


def test_a_group_is_as_old_as_its_oldest_token() -> None:
    hall = ReplayHall(m.Replay(groups=50, keep_groups=50), staleness=2, batch=2)
    hall.step()
    hall.step([0, 1])
    assert sorted(again(hall.step())) == [0, 1, 2, 3]
    assert sorted(again(hall.step())) == [3, 4, 5], "2 was trained beside 3, and is of the version of 0 and 1"


def test_with_a_second_trainer_what_is_in_a_lease_is_not_evicted() -> None:
    replay = m.Replay(groups=2, keep_groups=2)
    spec = replaying(replay, batch=2)
    critic = m.Consumer("critic", ("tokens",), unit="group", terminal=True, sampler="in_order")
    hall = ReplayHall(replay, batch=2)
    Desk.__init__(hall, msgspec.structs.replace(spec, consumers=(*spec.consumers, critic)), heartbeat_s=1e9, stall_s=1e9)
    hall.source, hall.rollout, hall.trainer = hall.join("source", "source"), hall.join("rollout"), hall.join("trainer")

    def train(consumer: str, step: int) -> m.OkTaken:
        taken = hall.take(hall.trainer, consumer, step=step)
        hall.ask(hall.trainer.connection, hall.commit(hall.trainer, step, [taken.lease], consumer), m.OkCommitted)
        return taken

    hall.fill([(0, 1)] * 2)
    train("trainer", 0)
    assert hall.told.kept == 0, "the critic has not had them"
    train("critic", 0)
    hall.fill([(1, 1)] * 4)
    train("trainer", 1)
    held = hall.take(hall.trainer, step=2)
    assert sorted(again(held)) == [0, 1]
    train("critic", 1)
    assert (hall.told.kept, hall.told.leased, hall.told.no_room) == (2, 2, 2), "the newcomers are not kept"
    hall.ask(hall.trainer.connection, hall.commit(hall.trainer, 2, [held.lease]), m.OkCommitted)
    train("critic", 2)
    assert (hall.told.evicted, hall.told.replayed) == (2, 2 + 2)
    assert set(hall.core.live_blocks(0)) == {row.columns[0].block for row in held.rows}  # type: ignore[union-attr]


def test_who_cannot_read_a_group_gives_it_up_for_good_and_it_was_not_replayed() -> None:
    hall = ReplayHall(TWO)
    hall.step()
    hall.fill([(1, 1)] * 4)
    taken = hall.part()
    given_up, kept = again(taken)
    other = hall.join("other", "trainer")
    late = hall.topic.late
    hall.ask(other.connection, m.DropGroups(topic="t", gids=[given_up], reason="x", **other.fields), m.OkEmpty)
    assert (hall.told.dropped, hall.topic.late) == (0, late + 1), "it is not his"
    hall.ask(hall.trainer.connection, m.DropGroups(topic="t", gids=[given_up, 3000], reason="x", **hall.trainer.fields), m.OkEmpty)
    assert (hall.told.dropped, hall.told.kept, hall.told.leased, hall.topic.late) == (1, 3, 1, late + 2)
    hall.train([taken])
    assert [event.gid for event in hall.log.of("replayed")] == [kept]
    assert hall.ledger() == {"trained": 8}


def test_at_the_end_of_the_run_all_is_freed() -> None:
    hall = ReplayHall(TWO)
    hall.step()
    hall.ask(hall.source.connection, m.ClosePrompts(topic="t", count=7), m.OkEmpty)
    hall.fill([(1, 1)] * 3)
    last = hall.part()
    assert (gids(last), len(again(last))) == ([4, 5, 6], 2), "a short batch has all of it"
    hall.train([last])
    assert hall.topic.over
    assert (hall.told.kept, hall.told.kept_bytes, hall.told.replayed, hall.core.live_blocks(0)) == (0, 0, 2, [])


@pytest.mark.parametrize("replay", [m.Replay(groups=2, keep_groups=0), m.Replay(groups=0, keep_groups=5, keep_bytes=1 << 40), None])
def test_off_is_as_if_it_were_not_there(replay: m.Replay | None) -> None:
    desks = [ReplayHall(each) for each in (replay, None)]  # type: ignore[arg-type]
    for hall in desks:
        hall.step()
        hall.step()
        assert (hall.topic.replays, hall.core.live_blocks(0), hall.consumer("trainer").replay) == ({}, [], None)
        assert hall.spec.admission_bytes == hall.spec.window.budget_bytes
    left, right = (hall.log.events for hall in desks)
    assert left == right


# ------------------------------------------------------------ bytes


def test_what_is_kept_has_bytes_of_its_own_and_never_holds_up_an_admission() -> None:
    hall = ReplayHall(m.Replay(groups=4, keep_groups=100, keep_bytes=40), budget_bytes=80, group_bytes=10, rows=9)
    assert hall.core.status().topics[0].permits == 4
    for _ in range(6):
        hall.fill([(0, 1)] * 4)
        assert hall.core.status().topics[0].permits == 0, "four groups may be open at their worst case, whatever is kept"
        parts = [hall.part(limit=1) for _ in range(4)]
        assert hall.topic.ledger.open * 10 + hall.told.kept_bytes <= 80
        hall.train(parts)
        assert hall.core.status().topics[0].permits == 4
    assert (hall.told.kept, hall.told.kept_bytes) == (4, 36)


def test_a_put_beyond_what_is_left_of_the_budget_is_refused_with_the_number() -> None:
    hall = ReplayHall(m.Replay(groups=1, keep_groups=3), budget_bytes=80, group_bytes=10)
    columns = {name: m.packed([(0, 90 + at, 0, 1) for at in range(6)]) for name in ("prompt", "tokens")}
    put = m.Put(topic="t", groups=6, rows_per_group=1, columns=columns, token=1, wait_s=0.0, **hall.rollout.fields)
    assert "budget_bytes=50" in hall.refuse(hall.rollout.connection, put)


# ------------------------------------------------------------ which


def drawn(order: str, seed: int, steps: int = 30, **options: Any) -> list[list[int]]:
    hall = ReplayHall(m.Replay(groups=3, keep_groups=12, order=order, seed=seed), **options)  # type: ignore[arg-type]
    return [again(hall.step()) for _ in range(steps)]


@pytest.mark.parametrize("order", ["uniform", "least_replayed"])
def test_the_lots_are_the_seeds(order: str) -> None:
    assert drawn(order, 1) == drawn(order, 1)
    assert drawn(order, 1) != drawn(order, 2)


def test_those_that_were_replayed_least_come_first() -> None:
    hall = ReplayHall(m.Replay(groups=3, keep_groups=8, order="least_replayed"), batch=1)
    counts: dict[int, int] = {}
    for _ in range(60):
        kept = {gid: counts.get(gid, 0) for gid in range(max(0, hall.topic.version - 8), hall.topic.version)}
        taken = hall.step()
        assert times(taken) == {gid: kept[gid] for gid in again(taken)}
        rest = [count for gid, count in kept.items() if gid not in again(taken)]
        assert max(times(taken).values(), default=0) <= min(rest, default=100)
        counts |= {gid: kept[gid] + 1 for gid in again(taken)}


def test_each_is_as_likely_as_another() -> None:
    lots, counts = Lots(7, 0), [0] * 8
    for item in range(8):
        lots.add(item, 0)
    for _ in range(4000):
        item = lots.draw()
        counts[item] += 1
        lots.add(item, 0)
    assert sum((count - 500) ** 2 / 500 for count in counts) < 24.3, "chi-square of 7 degrees, p > 0.001"


def calls_of_a_step(keep: int) -> int:
    hall = ReplayHall(m.Replay(groups=4, keep_groups=keep, order="least_replayed"), batch=10)
    while hall.told.kept < keep:
        hall.step()
    hall.step()
    hall.fill([(0, 1)] * 10)
    counted: list[str] = []
    sys.setprofile(lambda frame, event, argument: counted.append(event))
    try:
        hall.train([hall.part()])
    finally:
        sys.setprofile(None)
    return len([event for event in counted if event in ("call", "c_call")])


def test_a_take_and_a_commit_do_no_more_where_more_is_kept() -> None:
    few, many = calls_of_a_step(20), calls_of_a_step(600)
    assert many <= 1.05 * few, f"{many} calls with 600 groups kept, {few} with 20"


# ------------------------------------------------------------ told


def test_the_status_tells_what_is_kept_and_what_became_of_the_rest() -> None:
    hall = ReplayHall(m.Replay(groups=1, keep_groups=6))
    hall.step()
    hall.step()
    hall.fill([(2, 1)] * 4)
    hall.part()
    text = render(QueueReport(hall.core.status(), [], None, 0.0))
    assert "    replay: 6 groups kept in 6 B, 1 of them leased, 1 replayed, 2 evicted\n" in text + "\n"
    assert f"reserved of {sized(hall.spec.admission_bytes)}" in text


# ------------------------------------------------------------ declared

REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"groups": -1}, {}, r"replay.groups=-1: it must lie in \[0, "),
    ({"keep_groups": 1}, {}, r"replay.keep_groups=1: a batch could never have its 2 groups"),
    ({"order": "newest"}, {}, r"replay.order='newest': known are uniform, least_replayed"),
    ({"seed": -1}, {}, r"replay.seed=-1: it must lie in"),
    ({}, {"staleness": 0}, r"at staleness 0 a group is too old as soon as it is trained; nothing could be replayed. Set a staleness of at least 1"),
    ({}, {"train": m.Sampler("rank_aware", {"ranks": 4})}, r"replay.groups=2: it cannot be dealt to 4 ranks in equal counts; .* Choose a multiple"),
    ({"keep_bytes": 10}, {"group_bytes": 8}, r"replay.keep_bytes=10: 2 groups at their worst case \(group_bytes=8\) take 16"),
    ({"keep_bytes": 99}, {"group_bytes": 8, "budget_bytes": 128}, r"replay.keep_bytes=99: of budget_bytes=128 it leaves 29 to open groups"),
    ({"keep_groups": 13}, {"group_bytes": 8, "budget_bytes": 128}, r"replay.keep_bytes=104: of budget_bytes=128"),
]


@pytest.mark.parametrize(("replay", "options", "said"), REFUSED)
def test_what_cannot_work_is_refused_at_the_start(replay: dict[str, Any], options: dict[str, Any], said: str) -> None:
    spec = replaying(m.Replay(**{"groups": 2, "keep_groups": 4, **replay}), **options)
    with pytest.raises(ValueError, match=f"topic 't', consumer 'trainer': .*{said}"):
        Core(CoreConfig(topics=[spec]), ReplayHall(TWO).log, lambda: 0.0)


@pytest.mark.parametrize(("change", "said"), [({"needs_weights": True}, "needs_weights"), ({"terminal": False, "unit": "row"}, "only a terminal")])
def test_only_a_trainer_that_gets_whole_groups_at_once_can_have_it(change: dict[str, Any], said: str) -> None:
    spec = replaying(TWO)
    judge, trainer = spec.consumers
    other = m.Consumer("other", ("tokens",), unit="group", terminal=True)
    spec = msgspec.structs.replace(spec, consumers=(judge, msgspec.structs.replace(trainer, **change), other))
    with pytest.raises(ValueError, match=said):
        Core(CoreConfig(topics=[spec]), ReplayHall(TWO).log, lambda: 0.0)


def test_it_is_no_sampler_and_who_takes_it_for_one_is_told_where_it_belongs() -> None:
    with pytest.raises(ValueError, match=r"it is no sampler; .* Declare it beside the sampler: Consumer\(…, replay=Replay\("):
        Core(CoreConfig(topics=[replaying(None, train="replay")]), ReplayHall(TWO).log, lambda: 0.0)
