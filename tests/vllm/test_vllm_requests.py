"""Requests to vLLM: what is refused, aborts, pauses. Every request ends in exactly one finish."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from vllm_harness import Outcomes, collect, finish_all, greedy, load, prompts, qwen2, run, sampled, until_running

from asyncflow.contracts.rollout import Request, Sampling
from asyncflow.engines.rollout.vllm.engine import VllmRolloutEngine

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
GOOD = Request("good", (3, 4, 5), Sampling(), seed=1, budget_left=5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": "good"}, "already queued"),
        ({"token_ids": ()}, "token_ids is empty"),
        ({"budget_left": 0}, "budget_left = 0"),
        ({"budget_left": 126}, "exceed kv_width = 128"),
        ({"min_version": 1 << 40}, "above the loaded version"),
        ({"token_ids": (3, 100)}, "outside 0..99"),
        ({"sampling": Sampling(float("nan"))}, "temperature = nan"),
        ({"sampling": Sampling(1.0, (100,))}, "stop_token_ids"),
    ],
)
def test_a_request_that_breaks_a_rule_is_refused_by_name_and_nothing_of_its_call_is_queued(
    engine: VllmRolloutEngine, change: dict[str, object], words: str
) -> None:
    load(engine, qwen2(0))
    with pytest.raises(ValueError, match=words):
        engine.generate([GOOD, msgspec.structs.replace(GOOD, **({"id": "bad"} | change))])
    assert engine.capacity().queued + engine.capacity().running == 0


def test_a_finished_id_may_come_again_once_its_end_was_fetched_and_requests_are_not_changed(engine: VllmRolloutEngine) -> None:
    load(engine, qwen2(0))
    before = msgspec.json.encode(GOOD)
    first = run(engine, [GOOD])["good"]
    assert run(engine, [GOOD])["good"].tokens == first.tokens
    assert msgspec.json.encode(GOOD) == before


def test_aborted_requests_end_at_once_whether_they_run_or_wait_and_the_others_go_on(engine: VllmRolloutEngine) -> None:
    load(engine, qwen2(1))
    requests = [sampled(f"a{i}", prompt, seed=i, tokens=100) for i, prompt in enumerate(prompts(20, length=8))]
    outcomes: Outcomes = {}
    engine.generate(requests)
    until_running(engine, 2, outcomes)
    gone = [request.id for request in requests[::2]]
    engine.abort([*gone, "unknown"])
    collect(engine.chunks(), outcomes)
    assert all(outcomes[id_].finishes for id_ in gone)
    finish_all(engine, outcomes)
    assert sorted(outcomes) == sorted(request.id for request in requests)
    assert all(len(outcome.finishes) == 1 for outcome in outcomes.values())
    assert all(outcomes[request.id].finishes != ["aborted"] for request in requests[1::2])
    assert "aborted" in {outcomes[id_].finishes[0] for id_ in gone}
    engine.abort(gone)
    assert engine.chunks() == []


def test_capacity_counts_what_runs_and_what_waits(engine: VllmRolloutEngine) -> None:
    load(engine, qwen2(1))
    assert engine.capacity() == type(engine.capacity())(slots=8, free_slots=8, running=0, queued=0, parts=True)
    assert engine.next_chunk_s() == float("inf")
    outcomes: Outcomes = {}
    engine.generate([sampled(f"q{i}", prompt, seed=i, tokens=100) for i, prompt in enumerate(prompts(60, length=8))])
    assert engine.capacity().free_slots == 0
    assert engine.next_chunk_s() <= 1.0
    until_running(engine, 4, outcomes)
    assert 4 <= engine.capacity().running <= 8
    finish_all(engine, outcomes)
    assert len(outcomes) == 60


def test_pause_keep_holds_running_requests_wait_finishes_them_and_abort_ends_all(engine: VllmRolloutEngine) -> None:
    model = qwen2(2)
    load(engine, model)
    requests = [greedy(f"p{i}", prompt, tokens=100) for i, prompt in enumerate(prompts(40, length=6))]
    whole = run(engine, requests)
    outcomes: Outcomes = {}
    engine.generate(requests)
    until_running(engine, 3, outcomes)
    engine.pause("keep")
    collect(engine.chunks(), outcomes)
    assert engine.chunks(wait_s=0.3) == []
    assert (running := engine.capacity().running) > 0
    engine.pause("wait")
    collect(engine.chunks(), outcomes)
    assert engine.capacity().running == 0
    assert engine.capacity().queued > 0
    engine.pause("abort")
    collect(engine.chunks(), outcomes)
    assert engine.capacity().free_slots == engine.capacity().slots
    ended = {key: outcome for key, outcome in outcomes.items() if outcome.finishes != ["aborted"]}
    assert len(ended) >= running
    assert len(outcomes) == len(requests)
    for key, outcome in ended.items():
        assert outcome.tokens == whole[key].tokens
        np.testing.assert_allclose(outcome.logprobs, whole[key].logprobs, atol=1e-4)


def test_every_request_ends_exactly_once_whatever_is_aborted_paused_and_loaded(engine: VllmRolloutEngine) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng, models = random.Random(seed), [qwen2(index) for index in range(4)]
    load(engine, models[0])
    waiting = [sampled(f"e{i}", prompt, seed=i, tokens=rng.randrange(1, 60)) for i, prompt in enumerate(prompts(150, seed=seed))]
    budgets = {request.id: request.budget_left for request in waiting}
    outcomes: Outcomes = {}
    for _ in range(120):
        count = rng.randrange(5)
        engine.generate(waiting[:count])
        waiting = waiting[count:]
        engine.abort([*rng.sample(sorted(budgets), 2), "unknown"])
        if rng.random() < 0.15:
            load(engine, rng.choice(models))
        if rng.random() < 0.1:
            engine.pause(rng.choice(["keep", "wait", "abort"]))
            collect(engine.chunks(), outcomes)
            assert engine.chunks() == []
            engine.resume()
        collect(engine.chunks(wait_s=rng.choice([0.0, 0.01])), outcomes)
    engine.generate(waiting)
    finish_all(engine, outcomes)
    assert sorted(outcomes) == sorted(budgets)
    for name, outcome in outcomes.items():
        assert len(outcome.finishes) == 1
        assert len(outcome.tokens) <= budgets[name]
        assert outcome.versions == sorted(outcome.versions)
