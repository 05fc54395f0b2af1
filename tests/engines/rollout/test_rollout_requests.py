"""Requests: what is refused, budgets, stops, aborts, pauses, resumes. Every request ends in exactly one finish."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from rollout_harness import SHAPE, STOP, Outcome, collect, finish_all, load, new_engine, new_requests, run

from asyncflow.contracts.rollout import Request, Sampling
from asyncflow.engines.model import build_model
from asyncflow.engines.rollout.embedded import EmbeddedRolloutEngine

GOOD = Request("good", (3, 4, 5), Sampling(), seed=1, budget_left=5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": "good"}, "already queued"),
        ({"token_ids": ()}, "token_ids is empty"),
        ({"budget_left": 0}, "budget_left = 0"),
        ({"budget_left": 46}, "exceed kv_width = 48"),
        ({"min_version": 1}, "min_version = 1 is above the loaded version 0"),
        ({"token_ids": (3, 21)}, "outside 0..20"),
        ({"token_ids": (-1,)}, "outside 0..20"),
        ({"sampling": Sampling(float("nan"))}, "temperature = nan"),
        ({"sampling": Sampling(-1.0)}, "temperature = -1.0"),
        ({"sampling": Sampling(1.0, (99,))}, "stop_token_ids"),
    ],
)
def test_a_request_that_breaks_a_rule_is_refused_by_name_and_nothing_of_its_call_is_queued(change: dict[str, object], words: str) -> None:
    engine = new_engine()
    bad = msgspec.structs.replace(GOOD, **({"id": "bad"} | change))
    with pytest.raises(ValueError, match=words):
        engine.generate([GOOD, bad])
    assert engine.capacity().queued == 0
    assert engine.chunks() == []


def test_a_running_id_is_refused_and_a_finished_one_may_come_again() -> None:
    engine = new_engine()
    engine.generate([GOOD])
    engine.chunks()
    with pytest.raises(ValueError, match="already queued or running"):
        engine.generate([GOOD])
    finish_all(engine)
    assert run(engine, [GOOD])["good"].finishes


def test_an_engine_without_weights_start_or_life_refuses_work() -> None:
    engine = EmbeddedRolloutEngine(build_model(SHAPE), slots=4, prompt_width=8, kv_width=16)
    with pytest.raises(RuntimeError, match="not started"):
        engine.generate([GOOD])
    engine.start()
    with pytest.raises(ValueError, match="no weights are loaded"):
        engine.generate([GOOD])
    assert engine.loaded is None
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        engine.chunks()


def test_the_queue_has_a_bound() -> None:
    engine = new_engine(max_queued=3)
    requests = new_requests(4)
    with pytest.raises(ValueError, match="max_queued = 3"):
        engine.generate(requests)
    engine.generate(requests[:3])


WRONG = [("slots", 3), ("kv_width", 40), ("kv_width", 0), ("kv_width", 80), ("prompt_width", 2), ("steps_per_call", 0), ("prefill_rows", 0)]


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_width_that_would_change_bits_or_break_is_refused(key: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{key} = {value}"):
        new_engine(**{key: value})


def test_a_budget_is_never_exceeded_and_a_sampled_stop_token_is_kept_and_wins() -> None:
    requests = new_requests(40, seed=9)
    outcomes = run(new_engine(), requests)
    for request in requests:
        outcome = outcomes[request.id]
        assert 1 <= len(outcome.tokens) <= request.budget_left
        assert STOP not in outcome.tokens[:-1]
        assert outcome.finishes == (["stop"] if outcome.tokens[-1] == STOP else ["length"])
        assert outcome.finishes == ["stop"] or len(outcome.tokens) == request.budget_left
    assert {o.finishes[0] for o in outcomes.values()} == {"stop", "length"}


def test_stop_tokens_of_one_request_do_not_stop_its_neighbours_or_its_successor_in_the_slot() -> None:
    everything = tuple(range(SHAPE.vocab_size))
    engine = new_engine(slots=4)
    outcomes = run(engine, [Request(f"{i}", (5, 6), Sampling(1.0, everything if i % 2 else ()), i, 10) for i in range(16)])
    assert all(len(outcomes[f"{i}"].tokens) == 1 for i in range(1, 16, 2))
    assert any(len(outcomes[f"{i}"].tokens) > 1 for i in range(0, 16, 2))


def test_every_request_ends_exactly_once_whatever_is_aborted_paused_and_loaded() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng, engine = random.Random(seed), new_engine()
    outcomes: dict[str, Outcome] = {}
    waiting = new_requests(120, seed=4)
    names = [request.id for request in waiting]
    for version in range(1, 80):
        count = rng.randrange(5)
        engine.generate(waiting[:count])
        waiting = waiting[count:]
        engine.abort([*rng.sample(names, 2), "unknown"])
        if rng.random() < 0.1:
            load(engine, version, seed=version)
        if rng.random() < 0.1:
            engine.pause(rng.choice(["keep", "wait", "abort"]))
            collect(engine.chunks(), outcomes)
            assert engine.chunks() == []
            engine.resume()
        collect(engine.chunks(), outcomes)
    engine.generate(waiting)
    finish_all(engine, outcomes)
    assert sorted(outcomes) == sorted(names)
    assert all(len(outcome.finishes) == 1 for outcome in outcomes.values())
    assert engine.capacity() == new_engine().capacity()


def test_pause_keep_holds_running_requests_wait_finishes_them_and_abort_ends_all() -> None:
    requests = new_requests(12, seed=8)
    whole = run(new_engine(), requests)
    engine = new_engine()
    engine.generate(requests)
    outcomes: dict[str, Outcome] = {}
    collect(engine.chunks(), outcomes)
    engine.pause("keep")
    assert engine.chunks() == []
    running = engine.capacity().running
    assert running > 0
    engine.pause("wait")
    collect(engine.chunks(), outcomes)
    assert engine.capacity().running == 0
    assert engine.capacity().queued > 0
    engine.pause("abort")
    collect(engine.chunks(), outcomes)
    assert engine.capacity().free_slots == engine.capacity().slots
    ended = {key: outcome for key, outcome in outcomes.items() if outcome.finishes != ["aborted"]}
    assert len(ended) >= running
    assert all((o.tokens, o.bits) == (whole[key].tokens, whole[key].bits) for key, o in ended.items())


@pytest.mark.parametrize("cut", [1, 4, 9, 25])
def test_a_resumed_request_goes_on_with_the_same_random_numbers_in_any_company(cut: int) -> None:
    engine = new_engine()
    first = Request("whole", (7, 3, 12), Sampling(), seed=77, budget_left=30)
    for seed in range(77, 200):  # one that is long enough to be cut
        first = msgspec.structs.replace(first, seed=seed)
        whole = run(engine, [first])["whole"]
        if len(whole.tokens) > cut:
            break
    rest = Request("rest", first.token_ids + tuple(whole.tokens[:cut]), Sampling(), first.seed, first.budget_left - cut)
    alone, crowded = run(engine, [rest])["rest"], run(new_engine(), [*new_requests(10), rest])["rest"]
    assert alone.tokens == whole.tokens[cut:]
    np.testing.assert_allclose(alone.logprobs, whole.logprobs[cut:], atol=2e-5)  # keys and values of the cut part come from prefill now
    assert (alone.tokens, alone.bits) == (crowded.tokens, crowded.bits)
    assert cut + len(alone.tokens) <= first.budget_left


def test_memory_can_be_released_when_idle_and_comes_back_with_the_same_bits() -> None:
    engine = new_engine()
    requests = new_requests(10)
    before = run(engine, requests)
    engine.generate(requests)
    engine.chunks()
    with pytest.raises(RuntimeError, match="requests are running"):
        engine.release_memory()
    finish_all(engine)
    engine.release_memory()
    engine.generate(requests)
    with pytest.raises(RuntimeError, match="restore_memory"):
        engine.chunks()
    engine.restore_memory()
    assert finish_all(engine) == before
