"""Every built-in order against a plain model of it, and where it is refused."""

from __future__ import annotations

import itertools
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samplers_desk import Hall, Put, gids, topic

from transfer_queue import messages as m
from transfer_queue.samplers import ORDERS

PUTS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 500)), min_size=1, max_size=24)


def model(order: str, waiting: dict[int, Put], limit: int) -> list[int]:
    """Gids that a take gets: everything that waits is looked at and sorted."""
    if order == "in_order":
        return sorted(waiting)[:limit]
    if order == "newest_first":
        return sorted(waiting, key=lambda gid: (-waiting[gid][0], gid))[:limit]
    oldest = sorted(waiting, key=lambda gid: (waiting[gid][0], gid))
    if order == "same_version":
        return [gid for gid in oldest if waiting[gid][0] == waiting[oldest[0]][0]][:limit]
    return oldest[:limit]


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(ORDERS), PUTS, st.lists(st.integers(1, 9), min_size=1, max_size=12), st.sampled_from(["row", "group"]))
def test_takes_come_in_the_order_of_the_model(order: str, puts: list[Put], limits: list[int], unit: m.Unit) -> None:
    hall = Hall(topic(order, unit=unit, staleness=9))
    hall.advance(3)
    waiting = dict(zip(hall.fill(puts), puts, strict=True))
    for limit in limits:
        taken = hall.take(hall.judge, "judge", limit=limit)
        expected = model(order, waiting, limit)
        assert gids(taken) == expected
        if not expected:
            break
        hall.judged(taken)
        for gid in expected:
            del waiting[gid]


@pytest.mark.parametrize("unit", ["row", "group"])
def test_what_is_given_back_is_served_again_in_its_place(unit: m.Unit) -> None:
    for order in ORDERS:
        hall = Hall(topic(order, unit=unit, staleness=9))
        hall.advance(2)
        hall.fill([(1, 5), (0, 5), (2, 5), (1, 5)])
        first = hall.take(hall.judge, "judge", limit=2)
        hall.ask(hall.judge.connection, m.Release(topic="t", consumer="judge", lease=first.lease, **hall.judge.fields), m.OkEmpty)
        assert gids(hall.take(hall.judge, "judge", limit=2)) == gids(first)


def test_a_take_of_one_version_gets_the_oldest_that_has_enough() -> None:
    hall = Hall(topic("same_version"))
    hall.advance(1)
    old, *new = hall.fill([(0, 5), (1, 5), (1, 5)])
    asked = hall.send(hall.judge.connection, m.Take(topic="t", consumer="judge", limit=4, at_least=2, wait_s=5.0, **hall.judge.fields))
    assert gids(hall.replies[asked]) == new
    assert gids(hall.take(hall.judge, "judge", limit=4, at_least=2)) == [old], "at the deadline what there is"


def test_a_batch_of_one_version_waits_until_a_version_can_fill_it() -> None:
    hall = Hall(topic("in_order", train="same_version", batch=3))
    hall.advance(1)
    first = hall.fill([(0, 5), (0, 5), (1, 5), (1, 5)])
    assert not gids(hall.take(hall.trainer, step=1))
    third, *_ = hall.fill([(1, 5), (0, 5)])
    part = hall.take(hall.trainer, limit=1, step=1)
    rest = hall.take(hall.trainer, step=1)
    assert gids(part) + gids(rest) == [*first[:2], third + 1]
    hall.train([part, rest])
    assert gids(hall.take(hall.trainer, step=2)) == [*first[2:], third]
    assert hall.consumer("trainer").fallbacks == 0


def test_a_batch_is_mixed_and_counted_when_no_more_groups_can_come() -> None:
    hall = Hall(topic("in_order", train="same_version", batch=3))
    hall.advance(1)
    first = hall.fill([(1, 5), (0, 5), (1, 5)])
    asked = hall.send(hall.trainer.connection, m.Take(topic="t", consumer="trainer", limit=3, step=1, wait_s=50.0, **hall.trainer.fields))
    assert asked not in hall.replies
    hall.ask(hall.source.connection, m.ClosePrompts(topic="t", count=6), m.OkEmpty)
    assert gids(hall.replies[asked]) == [first[1], first[0], first[2]]
    assert hall.consumer("trainer").fallbacks == 1
    assert "no version can fill the batch" in hall.consumer("trainer").sampler_fault
    assert [event.data["consumer"] for event in hall.log.of("topic") if event.reason == "sampler_fell_back"] == ["trainer"]
    hall.train([hall.replies[asked]])  # type: ignore[list-item]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=20), st.integers(1, 3))
def test_under_drop_batches_of_one_version_never_stop_a_run(ages: list[int], batch: int) -> None:
    """The window is filled whenever it has room, versions are as old as the bound allows, and every batch has one version."""
    hall = Hall(topic("in_order", train="same_version", batch=batch, staleness=2))
    age = itertools.cycle(ages)
    for _ in range(10):
        room = hall.core.status().topics[0].permits
        hall.fill([(max(0, hall.topic.version - next(age)), 3) for _ in range(room)])
        taken = hall.take(hall.trainer, step=hall.topic.version)
        assert len({row.oldest_version for row in taken.rows}) == 1
        hall.train([taken])
    assert hall.consumer("trainer").fallbacks == 0
    assert hall.topic.ledger.trained == 10 * batch


@pytest.mark.parametrize("order", ["in_order", "oldest_first", "earliest_deadline", "length_balanced"])
def test_under_wait_no_order_takes_a_newer_group_before_an_older_one(order: str) -> None:
    sampler = m.Sampler(order, {"ranks": 1}) if order == "length_balanced" else m.Sampler(order)
    hall = Hall(topic("in_order", train=sampler, staleness=3, policy="wait", batch=2))
    rank = {"rank": 0} if order == "length_balanced" else {}
    hall.fill([(0, 1), (0, 9)])
    hall.train([hall.take(hall.trainer, step=0, **rank)])
    new, old = hall.fill([(1, 1), (0, 9)])
    hall.prompts(1, hall.source)
    (lease,) = hall.pull(hall.rollout, 1, loaded=1)
    assert lease.gid > new
    assert gids(hall.take(hall.trainer, step=1, **rank)) == [old], "a group that is generated may still be of version 0"
    assert not hall.put(hall.rollout, lease, 1)
    assert gids(hall.take(hall.trainer, step=1, **rank)) == [new]


@pytest.mark.parametrize(
    ("sampler", "window", "said"),
    [
        ("newest_frist", {}, "Did you mean 'newest_first'?"),
        (m.Sampler("in_order", {"ranks": 2}), {}, "has no such option"),
        (m.Sampler("rank_aware", {"rank": 2}), {}, "Did you mean 'ranks'?"),
        (m.Sampler("rank_aware", {}), {}, "must be a whole number"),
        (m.Sampler("rank_aware", {"ranks": True}), {}, "must be a whole number"),
        (m.Sampler("length_balanced", {"ranks": 3}), {}, "cannot be dealt to them in equal counts"),
        (m.Sampler("length_balanced", {"ranks": 2, "order": "odlest_first"}), {}, "Did you mean 'oldest_first'?"),
        ("newest_first", {"policy": "wait", "staleness": 1}, "`wait` fixes the order"),
        ("same_version", {"policy": "wait", "staleness": 1}, "`wait` fixes the order"),
        ("earliest_deadline", {"staleness": None}, "none has a deadline"),
        ("json:nothing_there", {}, "cannot be imported"),
        ("json:__doc__", {}, "not a function"),
        (m.Sampler("samplers_desk:shortest_first", {"most_token": 9}), {}, "Did you mean 'most_tokens'?"),
        ("operator:neg", {}, "cannot be called with"),
    ],
)
def test_a_sampler_that_cannot_be_used_is_refused_at_start(sampler: m.Sampler | str, window: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match="consumer 'trainer'") as refused:
        Hall(topic("in_order", train=sampler, **window))
    assert said in str(refused.value)


def test_a_schema_with_samplers_travels() -> None:
    spec = topic(m.Sampler("rank_aware", {"ranks": 2}), train="newest_first")
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=m.TopicSpec)
    assert again == spec
    assert again.digest() == spec.digest() != topic("in_order").digest()
    assert Counter(consumer.sampling.name for consumer in again.consumers) == {"rank_aware": 1, "newest_first": 1}
