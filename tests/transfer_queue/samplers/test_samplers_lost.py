"""Groups that end, or lose their bytes with a shard, while they are in a part of a round."""

from __future__ import annotations

from typing import Any

import msgspec
from samplers_desk import Hall, Who, gids, named, topic

from transfer_queue import messages as m
from transfer_queue.controller.core import Core, CoreConfig
from transfer_queue.controller.repeats import FIRST
from transfer_queue.controller.run import FrozenRun
from transfer_queue.frozen import from_bytes, to_bytes
from transfer_queue.operation.report import QueueReport
from transfer_queue.status import render

TWO = m.Sampler("rank_aware", {"ranks": 2, "order": "in_order"})


class LossyHall(Hall):
    """Prompts lie on shard 0, what is generated on the shard `on`. Takes are of ranks, one group each unless told."""

    on = 0

    def __init__(self, spec: m.TopicSpec) -> None:
        super().__init__(spec)
        for index in range(2):
            self.join(f"shard-{index}", "shard", shard=f"tcp://127.0.0.1:{9000 + index}")

    def slice(self) -> m.Slice:
        return msgspec.structs.replace(super().slice(), shard=self.on)

    def prompts(self, count: int, source: Who | None = None) -> None:
        on, self.on = self.on, 0
        super().prompts(count, source)
        self.on = on

    def lose(self, index: int) -> None:
        self.ask(b"launcher", m.MemberDead(member=f"shard-{index}", incarnation=-1, cause="killed"), m.OkEmpty)

    def judge_part(self, rank: int, limit: int = 1) -> m.OkTaken:
        return self.take(self.judge, "judge", limit=limit, rank=rank)

    def train_part(self, rank: int, limit: int = 1) -> m.OkTaken:
        return self.take(self.trainer, limit=limit, rank=rank, step=self.topic.version)

    def again(self, rollout: Who) -> list[int]:
        """Whatever is handed out again is generated again."""
        leases = self.pull(rollout, 100, loaded=self.topic.version)
        for lease in leases:
            assert not self.put(rollout, lease, self.topic.version)
        return sorted(lease.gid for lease in leases)

    def drop(self, who: Who, *dropped: int, reason: str = "tired") -> None:
        self.ask(who.connection, m.DropGroups(topic="t", gids=list(dropped), reason=reason, **who.fields), m.OkEmpty)


class Silent:
    def on_event(self, event: m.Event) -> None: ...


def rounds(hall: Hall, consumer: str) -> Any:
    return hall.topic.rounds[hall.topic.schema.consumer(consumer)]


def test_rows_of_a_part_that_are_lost_are_made_again_and_dealt_in_another_round() -> None:
    hall = LossyHall(topic(TWO))
    hall.fill([(0, 1)])
    hall.on = 1
    hall.fill([(0, 1)] * 3)
    mine = hall.judge_part(0, limit=2)
    assert gids(mine) == [0, 1]
    hall.lose(1)
    hall.on = 0
    assert hall.again(hall.join("rollout-1")) == [1, 2, 3]
    part = hall.judge_part(1, limit=2)
    assert (part.lease, part.round) == (-1, 0), "its part is gone, and its turn is not"
    assert hall.write(hall.judge, mine, "judge", "score") == [1], "made of bytes that are no more"
    later = [hall.judge_part(rank, limit=2) for rank in (0, 1)]
    assert [gids(each) for each in later] == [[1], [2]]
    assert [each.round for each in later] == [1, 1]


def test_a_batch_gets_other_groups_for_those_that_are_lost_before_their_rank_has_them() -> None:
    hall = LossyHall(topic("in_order", train=TWO))
    hall.fill([(0, 1)] * 3)
    hall.on = 1
    hall.fill([(0, 1)])
    first = hall.train_part(0, limit=2)
    assert gids(first) == [0, 1]
    hall.lose(1)
    hall.on = 0
    assert hall.states() == {0: "leased", 1: "leased", 2: "leased", 3: "admitted"}
    second = hall.train_part(1, limit=2)
    assert (gids(second), second.round) == ([2], 0)
    assert hall.again(hall.join("rollout-1")) == [3]
    rest = [hall.train_part(rank, limit=2) for rank in (0, 1)]
    assert [gids(each) for each in rest] == [[3], []]
    assert [each.round for each in rest] == [1, 1]
    hall.train([first, second, *rest])
    assert hall.ledger() == {"trained": 4}
    assert rounds(hall, "trainer").freeze().parts == []


def test_what_a_rank_has_of_a_batch_is_left_to_it_and_looked_at_when_it_comes_back() -> None:
    hall = LossyHall(topic("in_order", train=TWO))
    hall.fill([(0, 1)] * 2)
    hall.on = 1
    hall.fill([(0, 1)] * 2)
    first, second = (hall.train_part(rank, limit=2) for rank in (0, 1))
    hall.lose(1)
    hall.on = 0
    assert set(hall.states().values()) == {"leased"}, "it may have read them"
    hall.ask(hall.trainer.connection, m.Release(topic="t", consumer="trainer", lease=second.lease, **hall.trainer.fields), m.OkEmpty)
    assert hall.states() == {0: "leased", 1: "leased", 2: "admitted", 3: "admitted"}
    assert hall.again(hall.join("rollout-1")) == [2, 3]
    back = hall.train_part(1, limit=2)
    assert (back.lease, back.round) == (-1, 0), "of its part of the first round nothing is left"
    rest = [hall.train_part(rank, limit=2) for rank in (0, 1)]
    assert [gids(each) for each in rest] == [[2], [3]]
    hall.train([first, *rest])
    assert hall.ledger() == {"trained": 4}


def test_a_group_that_is_dropped_leaves_the_part_that_waits_and_the_one_that_is_worked_on() -> None:
    hall = LossyHall(topic(TWO, unit="row", rows=2))
    hall.fill([(0, 1)] * 4)
    mine = hall.judge_part(0, limit=4)
    hall.take(hall.trainer, step=0)
    hall.drop(hall.trainer, 1, 3)
    theirs = hall.judge_part(1, limit=4)
    assert (gids(mine), gids(theirs)) == ([0, 1], [2])
    assert hall.write(hall.judge, mine, "judge", "score") == [1]
    assert hall.write(hall.judge, theirs, "judge", "score") == []
    assert hall.consumer().done_rows == 4
    assert rounds(hall, "judge").freeze().parts == []


def test_of_a_part_whose_groups_were_all_dropped_the_turn_is_left() -> None:
    hall = LossyHall(topic(TWO))
    hall.fill([(0, 1)] * 4)
    hall.judge_part(0, limit=2)
    hall.take(hall.trainer, step=0)
    hall.drop(hall.trainer, 2, 3)
    part = hall.judge_part(1, limit=2)
    assert (part.lease, part.round) == (-1, 0)
    assert hall.ledger() == {"leased": 2, "dropped:tired": 2}


def test_what_is_dealt_to_a_rank_of_the_trainer_can_not_be_dropped_by_another_stage() -> None:
    hall = LossyHall(topic("in_order", train=TWO))
    hall.fill([(0, 1)] * 4)
    judged = hall.take(hall.judge, "judge")
    hall.train_part(0, limit=2)
    late = hall.topic.late
    hall.drop(hall.judge, 3)
    assert hall.states()[3] == "leased"
    assert hall.topic.late == late + 1
    assert gids(hall.train_part(1, limit=2)) == [2, 3]
    assert hall.write(hall.judge, judged, "judge", "score") == [3], "the judge is through with it"


def test_a_rank_that_cannot_read_a_group_drops_it_and_the_batch_gets_another() -> None:
    hall = LossyHall(topic("in_order", train=TWO))
    hall.fill([(0, 1)] * 4)
    parts = [hall.train_part(rank, limit=2) for rank in (0, 1)]
    hall.drop(hall.trainer, 3, reason="shard_lost")
    (more,) = hall.fill([(0, 1)])
    parts += [hall.train_part(rank, limit=2) for rank in (0, 1)]
    assert [gids(part) for part in parts] == [[0, 1], [2, 3], [more], []]
    hall.train(parts)
    assert hall.ledger() == {"trained": 4, "dropped:shard_lost": 1}
    assert not list(hall.topic.leases)
    assert rounds(hall, "trainer").freeze().parts == []


def test_a_drain_does_not_wait_for_a_part_that_nobody_gets_any_more() -> None:
    hall = LossyHall(topic(TWO, train=TWO))
    hall.fill([(0, 1)] * 4)
    judged = hall.judge_part(0, limit=2)
    trained = [hall.train_part(rank, limit=2) for rank in (0, 1)]
    hall.ask(b"operator", m.Drain(reason="maintenance"), m.OkEmpty)
    assert hall.judge_part(1, limit=2).round == -1
    assert not hall.core.drained
    hall.judged(judged)
    assert not hall.core.drained, "the ranks of the trainer have their whole batch"
    hall.train(trained)
    assert hall.core.drained


def test_a_drain_does_not_wait_for_a_batch_of_which_a_rank_has_no_part() -> None:
    hall = LossyHall(topic("in_order", train=TWO))
    hall.fill([(0, 1)] * 4)
    hall.train_part(0, limit=2)
    hall.ask(b"operator", m.Drain(reason="maintenance"), m.OkEmpty)
    assert hall.core.drained


def test_the_status_tells_parts_that_wait_from_leases_and_says_when_a_sampler_is_not_followed() -> None:
    hall = LossyHall(topic(m.Sampler("rank_aware", {"ranks": 2, "order": named(lambda ready, limit: [])})))
    hall.fill([(0, 1)] * 4)
    hall.judge_part(0, limit=2)
    consumer = hall.consumer()
    assert (consumer.leased_rows, consumer.leases, consumer.ready_rows) == (4, 1, 0)
    assert consumer.fallbacks == 1
    status = hall.ask(b"person", m.Status(), m.OkStatus).status
    assert "sampler fell back 1 times, last: it returned 0 places" in render(QueueReport(status, [], None, 0.0))


def test_a_group_that_is_trained_meanwhile_leaves_the_part_that_waits() -> None:
    hall = LossyHall(topic(TWO, batch=2))
    hall.fill([(0, 1)] * 2)
    mine = hall.judge_part(0)
    hall.train([hall.take(hall.trainer, step=0)])
    part = hall.judge_part(1)
    assert (gids(mine), part.lease, part.round) == ([0], -1, 0)
    assert hall.write(hall.judge, mine, "judge", "score") == [0]


def test_a_turn_without_rows_that_was_not_delivered_is_told_again() -> None:
    hall = LossyHall(topic(TWO))
    hall.fill([(0, 1)])
    assert gids(hall.judge_part(0)) == [0]
    request = m.Take(id=FIRST + 1, topic="t", consumer="judge", limit=1, rank=1, wait_s=0.0, **hall.judge.fields)
    hall.core.handle(b"lost", request)
    ((_, reply),) = hall.core.outbox
    hall.core.outbox.clear()
    assert isinstance(reply, m.OkTaken)
    assert (reply.lease, reply.round) == (-1, 0)
    hall.core.undelivered(b"lost", reply)
    hall.core.handle(b"back", request)
    assert hall.core.repeated == [(b"back", reply)]


def test_a_batch_of_several_versions_is_filled_by_who_comes_back_as_it_would_have_been() -> None:
    hall = LossyHall(topic("in_order", train="same_version"))
    hall.advance(1)
    hall.fill([(1, 1), (0, 1), (1, 1)])
    hall.ask(hall.source.connection, m.ClosePrompts(topic="t", count=7), m.OkEmpty)
    assert [gids(hall.take(hall.trainer, limit=1, step=1)) for _ in range(2)] == [[5], [4]]
    again = Core(CoreConfig(topics=[hall.spec], heartbeat_s=1e9, stall_s=1e9), Silent(), hall.clock)
    again.thaw(from_bytes(FrozenRun, to_bytes(hall.core.freeze())))
    last = m.Take(id=99, topic="t", consumer="trainer", limit=1, step=1, wait_s=0.0, **hall.trainer.fields)
    states = []
    for core in (hall.core, again):
        core.handle(b"trainer", last)
        assert isinstance(core.outbox[-1][1], m.OkTaken)
        assert gids(core.outbox[-1][1]) == [6]
        core.outbox.clear()
        states.append(to_bytes(core.freeze()))
    assert states[0] == states[1]
