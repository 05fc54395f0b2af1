"""What vLLM makes under our contract is what transformers, and a fresh vLLM, make of the same weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel
from vllm_harness import (
    STOP,
    VOCAB,
    WIDTH,
    Outcome,
    Outcomes,
    assert_greedy,
    check_new_weights,
    collect,
    finish_all,
    fresh_answers,
    greedy,
    llama,
    load,
    log_probs,
    prompts,
    qwen2,
    run,
    sampled,
    start_engine,
    until_running,
)

from asyncflow.contracts.rollout import Request, Sampling
from asyncflow.engines.model import hf_tensors
from asyncflow.engines.rollout.embedded import EmbeddedRolloutEngine
from asyncflow.engines.rollout.vllm.engine import VllmRolloutEngine

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
UPDATES = 5
DRAWS = 32  # after one context


def test_after_each_of_five_updates_greedy_tokens_and_log_probabilities_are_those_of_a_fresh_vllm(engine: VllmRolloutEngine, tmp_path: Path) -> None:
    models, asked = [qwen2(seed) for seed in range(UPDATES)], prompts(12)
    fresh = fresh_answers(models, asked, 12, tmp_path)
    for model, answers in zip(models, fresh, strict=True):
        version = load(engine, model)
        outcomes = run(engine, [greedy(f"g{i}", prompt) for i, prompt in enumerate(asked)])
        for i, (tokens, logprobs) in enumerate(answers):
            cut = next((at + 1 for at, token in enumerate(tokens) if token == STOP), len(tokens))  # the fresh one was told to ignore stops
            outcome = outcomes[f"g{i}"]
            assert outcome.tokens == tokens[:cut]
            np.testing.assert_allclose(outcome.logprobs, logprobs[:cut], atol=1e-5)
            assert set(outcome.versions) == {version}
            assert_greedy(model, asked[i], outcome)
    assert fresh[0] != fresh[1]


def test_another_architecture_gets_new_weights_too_untied_and_with_two_processes_that_share_the_model(tmp_path: Path) -> None:
    """Tied, and with keys and values that are kept: tests/vllm/owner.py."""
    engine = start_engine(tmp_path, llama(0, tied=False), tensor_parallel=2, on_update="recompute")
    try:
        for seed in (3, 4):
            check_new_weights(engine, llama(seed, tied=False))
        check_recomputed(engine, llama(4, tied=False), llama(5, tied=False))
    finally:
        engine.close()


def check_recomputed(engine: VllmRolloutEngine, old: PreTrainedModel, new: PreTrainedModel) -> None:
    """With `on_update: recompute` what a running request made under old weights is read by the new ones as if they had seen it all."""
    outcomes: Outcomes = {}
    asked = prompts(32, seed=14, length=6)
    engine.generate([greedy(f"m{i}", prompt, tokens=90) for i, prompt in enumerate(asked)])
    until_running(engine, 4, outcomes)
    after = load(engine, new)
    finish_all(engine, outcomes)
    cuts = [outcomes[f"m{i}"].versions.count(after - 1) for i in range(len(asked))]
    assert any(0 < cut < len(outcomes[f"m{i}"].tokens) for i, cut in enumerate(cuts))
    for i, (prompt, cut) in enumerate(zip(asked, cuts, strict=True)):
        tokens, logprobs = outcomes[f"m{i}"].tokens, outcomes[f"m{i}"].logprobs
        assert_greedy(old, prompt, Outcome(tokens[:cut], logprobs[:cut]))
        assert_greedy(new, (*prompt, *tokens[:cut]), Outcome(tokens[cut:], logprobs[cut:]))


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_log_probabilities_are_those_of_the_distribution_that_was_sampled(engine: VllmRolloutEngine, temperature: float) -> None:
    model = qwen2(7)
    load(engine, model)
    asked = prompts(16, seed=5)
    outcomes = run(engine, [sampled(f"s{i}", prompt, seed=i, temperature=temperature) for i, prompt in enumerate(asked)])
    for i, prompt in enumerate(asked):
        outcome = outcomes[f"s{i}"]
        expected = log_probs(model, prompt, outcome.tokens, temperature)[np.arange(len(outcome.tokens)), outcome.tokens]
        np.testing.assert_allclose(outcome.logprobs, expected, atol=1e-4)


def test_first_tokens_are_drawn_as_often_as_the_model_says(engine: VllmRolloutEngine) -> None:
    model, prompt, draws = qwen2(8), prompts(1, seed=6)[0], 1500
    load(engine, model)
    outcomes = run(engine, [sampled(f"d{i}", prompt, seed=1000 + i, tokens=1) for i in range(draws)])
    counts = np.bincount([outcome.tokens[0] for outcome in outcomes.values()], minlength=VOCAB)
    expected = np.exp(log_probs(model, prompt, [0])[0]) * draws
    often = expected >= 5
    statistic = ((counts - expected)[often] ** 2 / expected[often]).sum()
    freedom = int(often.sum()) - 1
    assert freedom > 10
    assert statistic < freedom + 5 * np.sqrt(2 * freedom)  # chi square, five standard deviations


def test_the_seed_of_a_request_alone_says_what_it_draws(engine: VllmRolloutEngine) -> None:
    load(engine, qwen2(9))
    asked = prompts(10, seed=7)
    alone = run(engine, [sampled("x", asked[0], seed=42)])["x"]
    crowd = [sampled(f"c{i}", prompt, seed=i) for i, prompt in enumerate(asked)]
    crowded = run(engine, [*crowd[:5], sampled("x", asked[0], seed=42), *crowd[5:], sampled("y", asked[0], seed=43)])
    assert crowded["x"].tokens == alone.tokens
    assert crowded["y"].tokens != alone.tokens
    np.testing.assert_allclose(crowded["x"].logprobs, alone.logprobs, atol=1e-4)


def test_both_engines_agree_on_the_log_probabilities_of_the_same_tokens(engine: VllmRolloutEngine) -> None:
    model = qwen2(10)
    version = load(engine, model)
    asked = prompts(8, seed=8)
    outcomes = run(engine, [greedy(f"g{i}", prompt) for i, prompt in enumerate(asked)])
    embedded = EmbeddedRolloutEngine(qwen2(0), slots=8, prompt_width=32, kv_width=64)
    embedded.start()
    assert engine.loaded is not None
    embedded.load_weights(engine.loaded, hf_tensors(model))
    others = run_embedded(embedded, [Request(f"g{i}", prompt, Sampling(0.0, (STOP,)), 0, 12) for i, prompt in enumerate(asked)])
    for name, outcome in outcomes.items():
        assert outcome.tokens == others[name].tokens
        assert set(others[name].versions) == {version}
        np.testing.assert_allclose(outcome.logprobs, others[name].logprobs, atol=1e-2)


def test_after_each_of_five_updates_both_engines_give_sampled_tokens_the_same_log_probabilities(engine: VllmRolloutEngine) -> None:
    """Many single draws after the same contexts: what both have drawn is compared. Both engines stay what they are from update to update."""
    contexts = [*prompts(8, seed=20), *prompts(4, seed=21, length=WIDTH - 8)]
    embedded = EmbeddedRolloutEngine(qwen2(0), slots=8, prompt_width=32, kv_width=WIDTH, stop_token_ids=(STOP,))
    embedded.start()
    for update, temperature in enumerate((0.6, 1.0, 1.7, 1.0, 1.0)):
        model = qwen2(60 + update)
        version = load(engine, model)
        assert engine.loaded is not None
        embedded.load_weights(engine.loaded, hf_tensors(model))
        requests = [
            sampled(f"{where}/{draw}", context, seed=where * DRAWS + draw, tokens=1, temperature=temperature)
            for where, context in enumerate(contexts)
            for draw in range(DRAWS)
        ]
        ours, theirs = drawn(run(engine, requests), version), drawn(run_embedded(embedded, requests), version)
        common = ours.keys() & theirs.keys()
        assert {where for where, _ in common} == {str(where) for where in range(len(contexts))}
        assert max(abs(ours[key] - theirs[key]) for key in common) <= 1e-2


def drawn(outcomes: Outcomes, version: int) -> dict[tuple[str, int], float]:
    """(context, token) → its log-probability."""
    assert all(outcome.versions == [version] for outcome in outcomes.values())
    return {(name.partition("/")[0], outcome.tokens[0]): outcome.logprobs[0] for name, outcome in outcomes.items()}


def run_embedded(engine: EmbeddedRolloutEngine, requests: list[Request]) -> Outcomes:
    outcomes: Outcomes = {}
    engine.generate(requests)
    while chunks := engine.chunks():
        collect(chunks, outcomes)
    return outcomes


def test_a_budget_is_never_exceeded_and_a_sampled_stop_token_is_kept_and_wins(engine: VllmRolloutEngine) -> None:
    load(engine, qwen2(11))
    asked = prompts(40, seed=9)
    requests = [Request(f"b{i}", prompt, Sampling(1.0, (10, 11, 12, 13)), i, budget_left=1 + i % 15) for i, prompt in enumerate(asked)]
    outcomes = run(engine, requests)
    for request in requests:
        outcome = outcomes[request.id]
        stops = {STOP, *request.sampling.stop_token_ids}
        assert 1 <= len(outcome.tokens) <= request.budget_left
        assert not stops & set(outcome.tokens[:-1])
        assert outcome.finishes == (["stop"] if outcome.tokens[-1] in stops else ["length"])
        assert outcome.finishes == ["stop"] or len(outcome.tokens) == request.budget_left
    assert {outcome.finishes[0] for outcome in outcomes.values()} == {"stop", "length"}


def test_a_request_as_long_as_the_model_is_run_to_its_last_token(engine: VllmRolloutEngine) -> None:
    model, prompt = qwen2(12), prompts(1, seed=10, length=100)[0]
    load(engine, model)
    engine.generate([Request("long", prompt, Sampling(1.0), 3, budget_left=28)])
    outcome = finish_all(engine)["long"]
    assert outcome.finishes == ["stop"] or len(outcome.tokens) == 28
    assert torch.isfinite(torch.tensor(outcome.logprobs)).all()
