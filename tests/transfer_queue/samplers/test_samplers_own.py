"""Samplers of somebody's own: what they see, and that nothing that they do stops or breaks the controller."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samplers_desk import Hall, gids, named, topic

from transfer_queue import messages as m
from transfer_queue.samplers import Candidates
from transfer_queue.samplers.candidates import WINDOW
from transfer_queue.samplers.guard import REST, SLOW_S, Guard
from transfer_queue.wire import decode_reply, encode

PLACE = st.integers(-3, 12)
ODD = st.one_of(
    st.lists(PLACE, max_size=10),
    st.lists(PLACE, max_size=10).map(lambda places: np.array(places, dtype=np.int64)),
    st.lists(st.booleans(), max_size=10).map(np.array),
    st.lists(st.floats(), max_size=6).map(np.array),
    st.lists(st.integers(-(2**70), 2**70), max_size=4),
    st.sampled_from([None, "abc", b"abc", 3, object(), {1: 2}, [[0], [1]], [[0], [1, 2]], [None], np.zeros((2, 2), int), range(3), [object()]]),
    st.sampled_from([ValueError("no"), KeyError(1), RecursionError(), MemoryError(), StopIteration()]),
    st.sampled_from([SystemExit(3), GeneratorExit(), BaseException()]),
)


def odd(answers: list[Any]) -> Any:
    """Gives these answers, one a call; errors are raised."""
    left = iter(answers)

    def choose(ready: Candidates, limit: int) -> Any:
        answer = next(left, [])
        ready.gid[:] = -1  # what it was given is its own
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return choose


@settings(max_examples=50, deadline=None)
@given(st.lists(ODD, max_size=30), st.sampled_from(["row", "group"]), st.integers(1, 5), st.sampled_from(["drop", "wait"]))
def test_whatever_a_sampler_returns_every_row_is_served_once_and_the_ledger_balances(
    answers: list[Any], unit: m.Unit, limit: int, policy: m.Policy
) -> None:
    path = named(odd(answers))
    hall = Hall(topic(path, unit=unit, rows=2, train=path, batch=4, staleness=1, policy=policy))
    put, served, trained = 0, [], []
    for step in range(3):
        puts = [(max(0, step - place % 2), 7) for place in range(hall.core.status().topics[0].permits)]
        put += len(hall.fill(puts))
        while (taken := hall.take(hall.judge, "judge", limit=limit)).lease != -1:
            served += [(row.gid, row.row) for row in taken.rows]
            hall.judged(taken)
        batch = []
        while (taken := hall.take(hall.trainer, limit=limit, step=step)).lease != -1:
            batch.append(taken)
            trained += gids(taken)
            assert all(row.oldest_version >= step - 1 for row in taken.rows), "the staleness bound holds"
        hall.train(batch)
        counts = hall.topic.ledger.counts
        assert counts["trained"] == 4 * (step + 1) == len(set(trained)) == len(trained)
        assert hall.topic.ledger.open + sum(count for state, count in counts.items() if state in ("trained",) or "dropped" in state) == put
        assert {state: count for state, count in hall.log.counts.items() if count} == hall.ledger()
    assert sorted(served) == [(gid, row) for gid in range(put) for row in range(2)]
    assert not hall.log.of("run"), "nothing failed inside the controller"


def test_the_longest_first_is_a_sampler_of_two_lines() -> None:
    def longest_first(ready: Candidates, limit: int) -> np.ndarray:
        return np.argsort(-ready.tokens, kind="stable")[:limit]

    hall = Hall(topic(named(longest_first)))
    hall.fill([(0, 5), (0, 9), (0, 1), (0, 7)])
    assert gids(hall.take(hall.judge, "judge", limit=3)) == [1, 3, 0]
    assert gids(hall.take(hall.judge, "judge", limit=3)) == [2]
    assert hall.consumer().fallbacks == 0


@pytest.mark.parametrize("unit", ["row", "group"])
def test_a_sampler_sees_what_is_ready_and_gets_its_options(unit: m.Unit) -> None:
    seen: list[Candidates] = []

    def look(ready: Candidates, limit: int, first: int = 0) -> list[int]:
        seen.append(ready)
        return [first]

    hall = Hall(topic(m.Sampler(named(look), {"first": 1}), unit=unit, rows=2))
    hall.advance(1)
    two, one = hall.fill([(1, 10), (0, 20)])
    whole = unit == "group"
    assert gids(hall.take(hall.judge, "judge", limit=1)) == [two if whole else one]
    ready = seen[0]
    assert ready.gid.tolist() == ([one, two] if whole else [one, one, two, two])
    assert ready.row.tolist() == ([0, 0] if whole else [0, 1, 0, 1])
    assert ready.version.tolist() == ready.newest.tolist() == ([0, 1] if whole else [0, 0, 1, 1])
    assert ready.tokens.tolist() == ([41, 21] if whole else [20, 21, 10, 11])
    assert ready.rows.tolist() == ([2, 2] if whole else [1, 1, 1, 1])
    assert ready.order.tolist() == ([5, 4] if whole else [5, 5, 4, 4])


def test_under_wait_a_sampler_sees_one_version_at_a_time() -> None:
    versions: list[set[int]] = []

    def newest(ready: Candidates, limit: int) -> np.ndarray:
        versions.append(set(ready.version.tolist()))
        return np.argsort(-ready.gid)[:limit]

    hall = Hall(topic("in_order", train=named(newest), batch=3, staleness=2, policy="wait"))
    hall.advance(1)
    first = hall.fill([(1, 1), (0, 1), (1, 1), (0, 1)])
    assert gids(hall.take(hall.trainer, step=1)) == [first[3], first[1], first[2]]
    assert versions[1:] == [{0}, {1}]


def test_a_sampler_sees_no_more_than_its_window_whatever_is_stored() -> None:
    sizes: list[int] = []

    def first(ready: Candidates, limit: int) -> range | list[int]:
        sizes.append(len(ready))
        return list(range(limit))

    hall = Hall(topic(named(first)))
    hall.fill([(0, 1)] * (3 * WINDOW))
    hall.take(hall.judge, "judge", limit=1)
    hall.take(hall.judge, "judge", limit=WINDOW)
    assert sizes == [WINDOW, 2 * WINDOW]


def test_fallbacks_are_counted_and_told_with_the_reason() -> None:
    hall = Hall(topic(named(odd([ValueError("out of luck"), [0, 0], [7], [0], ZeroDivisionError()]))))
    hall.fill([(0, 1)] * 8)
    served = [gids(hall.take(hall.judge, "judge", limit=2)) for _ in range(4)]
    assert served == [[0, 1], [2, 3], [4, 5], [6]], "in order, but for what was right"
    assert hall.consumer().fallbacks == 3
    assert "outside" in hall.consumer().sampler_fault
    told = [event.data for event in hall.log.of("topic") if event.reason == "sampler_fell_back"]
    assert [(data["times"], data["consumer"]) for data in told] == [(1, "judge"), (2, "judge")]
    assert "out of luck" in str(told[0]["why"])
    assert "twice" in str(told[1]["why"])


def test_a_slow_sampler_is_told_of_and_rests_so_long_that_the_controller_stays_free() -> None:
    now, told = [0.0], []

    def choose(ready: Candidates, limit: int) -> list[int]:
        now[0] += took[0]
        return [1]

    ready = Candidates(*(np.arange(3) for _ in range(7)))
    took = [SLOW_S / 2]
    guard = Guard(choose, lambda fault, times: told.append((fault, times)), lambda: now[0])
    assert guard.pick(ready, 1, 1).tolist() == [1]
    took[0] = 2.0
    assert guard.pick(ready, 1, 1).tolist() == [0]
    assert told == [(f"a call took 2.000 s, more than {SLOW_S} s", 1)]
    asked = now[0]
    took[0] = 0.0
    assert guard.pick(ready, 1, 1).tolist() == [0]
    assert now[0] == asked, "it was not asked"
    now[0] += 2.0 * REST
    assert guard.pick(ready, 1, 1).tolist() == [1]
    assert (guard.fallbacks, guard.slowest_s) == (2, 2.0)


def test_ctrl_c_is_not_taken_for_a_fault_of_the_sampler() -> None:
    def choose(ready: Candidates, limit: int) -> list[int]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Guard(choose, lambda fault, times: None).pick(Candidates(*(np.arange(3) for _ in range(7))), 1, 1)


class Unsayable(Exception):
    """Its text cannot be sent."""

    def __repr__(self) -> str:
        return "\udc80" * 300


class Liar(list[int]):
    """It says that it has one place."""

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize("answer", [Unsayable(), Liar([0, 1, 2])])
def test_what_a_sampler_says_is_not_believed_and_its_fault_can_be_sent(answer: Any) -> None:
    hall = Hall(topic(named(odd([answer]))))
    hall.fill([(0, 1)] * 4)
    assert gids(hall.take(hall.judge, "judge", limit=1)) == [0]
    status = hall.ask(hall.source.connection, m.Status(), m.OkStatus)
    assert decode_reply(encode(status)) == status
    assert hall.consumer().fallbacks == 1
