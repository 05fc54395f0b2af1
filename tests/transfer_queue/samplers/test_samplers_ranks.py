"""Parts of data-parallel ranks: chosen once for all, each row exactly once, a rank that comes back gets its own again."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samplers_desk import Hall, Who, gids, named, topic

from transfer_queue import messages as m
from transfer_queue.controller.rounds import MOST_AHEAD
from transfer_queue.samplers import ORDERS


def dealt(name: str = "rank_aware", ranks: int = 2, **options: str) -> m.Sampler:
    return m.Sampler(name, {"ranks": ranks, **options})


def workers(hall: Hall, ranks: int, role: str = "judge") -> list[Who]:
    return [hall.join(f"{role}-{rank}", role) for rank in range(ranks)]


def test_ranks_share_what_was_chosen_when_the_first_of_them_asked() -> None:
    hall = Hall(topic(dealt(ranks=2)))
    first, second = workers(hall, 2)
    hall.fill([(0, 1)] * 4)
    one = hall.take(first, "judge", limit=2, rank=0)
    hall.fill([(0, 1)] * 4)
    other = hall.take(second, "judge", limit=1, rank=1)
    assert (gids(one), gids(other)) == ([0, 1], [2, 3])
    assert one.round == other.round == 0
    assert hall.take(second, "judge", limit=2, rank=1).round == 1


def test_a_round_waits_until_every_rank_can_be_served_and_wakes_who_waits_for_it() -> None:
    hall = Hall(topic(dealt(ranks=3)))
    members = workers(hall, 3)
    asked = [
        hall.send(who.connection, m.Take(topic="t", consumer="judge", limit=1, rank=rank, wait_s=9.0, **who.fields))
        for rank, who in enumerate(members)
    ]
    hall.fill([(0, 1)] * 2)
    assert not hall.replies.keys() & set(asked)
    hall.fill([(0, 1)])
    assert [gids(hall.replies[each]) for each in asked] == [[0], [1], [2]]  # type: ignore[arg-type]


def test_at_the_deadline_what_there_is_is_dealt_and_a_rank_without_any_is_told_its_round() -> None:
    hall = Hall(topic(dealt(ranks=3)))
    members = workers(hall, 3)
    hall.fill([(0, 1)] * 2)
    parts = [hall.take(who, "judge", limit=4, rank=rank) for rank, who in enumerate(members)]
    assert [gids(part) for part in parts] == [[0], [1], []]
    assert [part.round for part in parts] == [0, 0, 0]
    assert parts[2].lease == -1
    assert hall.take(members[2], "judge", limit=4, rank=2).round == -1, "nothing was dealt since"


def test_a_rank_that_dies_gets_its_own_parts_again_in_their_order() -> None:
    hall = Hall(topic(dealt(ranks=2)))
    first, second = workers(hall, 2)
    hall.fill([(0, 1)] * 8)
    mine = [hall.take(first, "judge", limit=2, rank=0) for _ in range(2)]
    hall.ask(second.connection, m.MemberDead(member="judge-0", incarnation=-1, cause="killed"), m.OkEmpty)
    again = hall.join("judge-0", "judge")
    theirs = [hall.take(second, "judge", limit=2, rank=1) for _ in range(2)]
    back = [hall.take(again, "judge", limit=2, rank=0) for _ in range(2)]
    assert [gids(part) for part in back] == [gids(part) for part in mine] == [[0, 1], [4, 5]]
    assert [part.round for part in back] == [part.round for part in theirs] == [0, 1]


def test_a_lease_that_runs_out_is_the_same_rank_s_again_and_its_late_answer_counts_once() -> None:
    hall = Hall(topic(dealt(ranks=2)))
    first, second = workers(hall, 2)
    hall.fill([(0, 1)] * 2)
    slow = hall.take(first, "judge", limit=1, rank=0)
    hall.wait(hall.topic.lease_s + 1)
    assert not hall.write(first, slow, "judge", "score")
    part = hall.take(first, "judge", limit=1, rank=0)
    assert (part.lease, part.round) == (-1, 0), "it was done meanwhile"
    assert gids(hall.take(second, "judge", limit=1, rank=1)) == [1]


def test_a_fast_rank_waits_for_a_rank_that_is_too_far_behind() -> None:
    hall = Hall(topic(dealt(ranks=2)))
    first, second = workers(hall, 2)
    hall.fill([(0, 1)] * (2 * MOST_AHEAD + 2))
    for _ in range(MOST_AHEAD):
        hall.judged_by(first, hall.take(first, "judge", limit=1, rank=0))
    asked = hall.send(first.connection, m.Take(topic="t", consumer="judge", limit=1, rank=0, wait_s=9.0, **first.fields))
    assert asked not in hall.replies
    hall.take(second, "judge", limit=1, rank=1)
    assert gids(hall.replies[asked]) == [2 * MOST_AHEAD]  # type: ignore[arg-type]


def test_a_take_with_the_wrong_rank_or_with_none_is_refused() -> None:
    hall = Hall(topic(dealt(ranks=2)))
    hall.fill([(0, 1)] * 4)
    for rank in (None, 2, -1):
        take = m.Take(topic="t", consumer="judge", limit=1, rank=rank, **hall.judge.fields)
        assert "deals to ranks 0 to 1" in hall.refuse(hall.judge.connection, take)
    take = m.Take(topic="t", consumer="trainer", limit=1, rank=0, step=0, **hall.trainer.fields)
    assert "deals to no ranks" in hall.refuse(hall.trainer.connection, take)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 4), st.sampled_from(ORDERS[:4]), st.booleans(), st.integers(0, 1 << 30))
def test_every_row_is_served_exactly_once_through_deaths(groups: int, ranks: int, order: str, balance: bool, seed: int) -> None:
    name, chance = "length_balanced" if balance else "rank_aware", random.Random(seed)
    hall = Hall(topic(dealt(name, ranks, order=order), unit="group", rows=2))
    hall.advance(2)
    members, done = workers(hall, ranks), Counter[tuple[int, int]]()
    last = hall.fill([(chance.randrange(3), chance.randrange(1, 4000)) for _ in range(groups)])
    rounds: dict[int, dict[int, int]] = {}  # of whole parts: round → rank → groups
    for _ in range(2000):
        rank = chance.randrange(ranks)
        taken = hall.take(members[rank], "judge", limit=3, rank=rank)
        if taken.round != -1:
            rounds.setdefault(taken.round, {})[rank] = len(gids(taken))
        if taken.lease == -1:
            if sum(done.values()) == 2 * groups:
                break
            continue
        if chance.random() < 0.3:
            hall.ask(hall.source.connection, m.MemberDead(member=f"judge-{rank}", incarnation=-1, cause="killed"), m.OkEmpty)
            members[rank] = hall.join(f"judge-{rank}", "judge")
            continue
        done.update((row.gid, row.row) for row in taken.rows)
        hall.judged_by(members[rank], taken)
    assert done == Counter((gid, row) for gid in last for row in range(2))
    for parts in rounds.values():
        if len(parts) == ranks:
            assert max(parts.values()) - min(parts.values()) <= 1
    assert not hall.log.of("run")


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(["drop", "wait"]), st.booleans(), st.integers(0, 1 << 30))
def test_a_batch_is_dealt_once_and_committed_whole_though_ranks_die(policy: m.Policy, balance: bool, seed: int) -> None:
    name, ranks, chance = "length_balanced" if balance else "rank_aware", 4, random.Random(seed)
    hall = Hall(topic("in_order", train=dealt(name, ranks), batch=8, staleness=2, policy=policy))
    members = workers(hall, ranks, "trainer")
    for step in range(3):
        hall.fill([(step, chance.randrange(1, 4000)) for _ in range(8)])
        if step == 2:
            hall.ask(hall.source.connection, m.ClosePrompts(topic="t", count=24), m.OkEmpty)
        held: dict[int, list[m.OkTaken]] = {rank: [] for rank in range(ranks)}
        while any(len(parts) < 2 for parts in held.values()):
            rank = chance.choice([rank for rank, parts in held.items() if len(parts) < 2])
            held[rank].append(hall.take(members[rank], limit=1, step=step, rank=rank))
            if chance.random() < 0.2:
                hall.ask(hall.source.connection, m.MemberDead(member=f"trainer-{rank}", incarnation=-1, cause="killed"), m.OkEmpty)
                members[rank], held[rank] = hall.join(f"trainer-{rank}", "trainer"), []
        parts = [part for taken in held.values() for part in taken]
        assert sorted(gid for part in parts for gid in gids(part)) == list(range(8 * step, 8 * step + 8))
        assert all(len(gids(part)) == 1 and part.batch == 8 for part in parts)
        lead = members[0]
        hall.ask(lead.connection, hall.commit(lead, step, [part.lease for part in parts]), m.OkCommitted)
        assert {state: count for state, count in hall.log.counts.items() if count} == hall.ledger() == {"trained": 8 * (step + 1)}
    assert hall.topic.over
    assert not list(hall.topic.leases)
    assert not hall.log.of("run") or hall.log.of("run")[0].reason == "completed"


def test_a_short_last_batch_is_dealt_as_evenly_as_it_can_be() -> None:
    hall = Hall(topic("in_order", train=dealt(ranks=4), batch=4))
    members = workers(hall, 4, "trainer")
    hall.fill([(0, 1)] * 3)
    hall.ask(hall.source.connection, m.ClosePrompts(topic="t", count=3), m.OkEmpty)
    parts = [hall.take(who, limit=1, step=0, rank=rank) for rank, who in enumerate(members)]
    assert [gids(part) for part in parts] == [[0], [1], [2], []]
    assert [(part.round, part.batch) for part in parts] == [(0, 3)] * 4
    hall.train(parts)
    assert hall.topic.over


def test_lengths_are_balanced_over_ranks() -> None:
    hall = Hall(topic(dealt("length_balanced", 2)))
    first, second = workers(hall, 2)
    hall.fill([(0, length) for length in (100, 90, 20, 10)])
    assert gids(hall.take(first, "judge", limit=2, rank=0)) in ([0, 3], [1, 2])
    assert gids(hall.take(second, "judge", limit=2, rank=1)) in ([0, 3], [1, 2])


def test_a_rank_with_older_weights_gets_its_part_once_they_are_new_enough() -> None:
    spec = topic(dealt(ranks=2))
    judge = m.Consumer(name="judge", inputs=("tokens",), outputs=("score",), unit="group", sampler=dealt(ranks=2), needs_weights=True)
    hall = Hall(m.TopicSpec(**{**{name: getattr(spec, name) for name in spec.__struct_fields__}, "consumers": (judge, spec.consumers[1])}))
    first, second = workers(hall, 2)
    hall.advance(1)
    hall.publish(hall.trainer, 1)
    hall.fill([(1, 1), (1, 1)])
    assert gids(hall.take(first, "judge", limit=1, rank=0, loaded=1)) == [4]
    assert hall.take(second, "judge", limit=1, rank=1, loaded=0).lease == -1
    assert gids(hall.take(second, "judge", limit=1, rank=1, loaded=1)) == [5]


@pytest.mark.parametrize("name", ["rank_aware", "length_balanced"])
def test_an_own_order_deals_to_ranks_too(name: str) -> None:
    hall = Hall(topic(dealt(name, 2, order=named(lambda ready, limit: (-ready.gid).argsort()[:limit]))))
    first, second = workers(hall, 2)
    hall.fill([(0, 1)] * 6)
    assert sorted(gids(hall.take(first, "judge", limit=1, rank=0)) + gids(hall.take(second, "judge", limit=1, rank=1))) == [4, 5]


@pytest.mark.parametrize("consumer", ["judge", "trainer"])
def test_a_rank_that_does_not_take_its_part_is_named_in_the_stall_report(consumer: str) -> None:
    spec = topic(dealt(ranks=2), train=dealt(ranks=2) if consumer == "trainer" else "oldest_first", batch=2)
    judge, trainer = spec.consumers
    inputs = ("tokens",) if consumer == "trainer" else ("tokens", "score")
    hall = Hall(msgspec.structs.replace(spec, consumers=(judge, msgspec.structs.replace(trainer, inputs=inputs))))
    first, _ = workers(hall, 2, consumer)
    hall.fill([(0, 1)] * 2)
    taken = hall.take(first, consumer, limit=1, rank=0, step=0 if consumer == "trainer" else None)
    if consumer == "judge":
        hall.judged_by(first, taken)
        hall.send(hall.trainer.connection, m.Take(topic="t", consumer="trainer", limit=2, at_least=2, step=0, wait_s=9.0, **hall.trainer.fields))
    waits = hall.ask(hall.source.connection, m.Status(waits=True), m.OkStatus).waits
    assert waits is not None
    assert (waits.blame.stage, waits.blame.members) == (consumer, ["rank 1"])
    assert "rank 1" in waits.verdict
    assert "does not take its part of a round" in waits.verdict
