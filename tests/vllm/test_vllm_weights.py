"""New weights for vLLM: whole and verified or not at all, and what running requests see of them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel
from vllm_harness import (
    BLOCK,
    STOP,
    WIDTH,
    Outcome,
    Outcomes,
    assert_greedy,
    collect,
    finish_all,
    greedy,
    load,
    log_probs,
    next_id,
    prompts,
    qwen2,
    run,
    sampled,
    until_running,
    weights_id,
)

from asyncflow.contracts.rollout import Request
from asyncflow.engines.model import hf_tensors
from asyncflow.engines.rollout.embedded import EmbeddedRolloutEngine
from asyncflow.engines.rollout.vllm.engine import VllmRolloutEngine

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
Tensors = dict[str, torch.Tensor]


def without_one(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name != "model.norm.weight"}


def with_another(tensors: Tensors) -> Tensors:
    return tensors | {"model.layers.2.mlp.up_proj.weight": torch.zeros(96, 64)}


def of_another_shape(tensors: Tensors) -> Tensors:
    return tensors | {"model.norm.weight": torch.ones(65)}


def of_another_dtype(tensors: Tensors) -> Tensors:
    return tensors | {"model.norm.weight": torch.ones(64, dtype=torch.bfloat16)}


def tied_apart(tensors: Tensors) -> Tensors:
    return tensors | {"lm_head.weight": torch.zeros_like(tensors["model.embed_tokens.weight"])}


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (without_one, "1 tensors are missing, the first is 'model.norm.weight'"),
        (with_another, "'model.layers.2.mlp.up_proj.weight' is unknown"),
        (of_another_shape, r"'model.norm.weight' is float32 \[65\], the model's float32 \[64\]"),
        (of_another_dtype, r"'model.norm.weight' is bfloat16 \[64\]"),
        (tied_apart, "'lm_head.weight' came under a tied name with other values"),
    ],
)
def test_a_set_that_does_not_fit_is_refused_and_the_old_weights_go_on_serving(
    engine: VllmRolloutEngine, broken: Callable[[Tensors], Tensors], words: str
) -> None:
    model = qwen2(20)
    version = load(engine, model)
    before = engine.loaded
    with pytest.raises(ValueError, match=words):
        engine.load_weights(next_id(engine), broken(dict(hf_tensors(qwen2(21)))).items())
    assert engine.loaded == before
    prompt = prompts(1)[0]
    outcome = run(engine, [greedy("old", prompt)])["old"]
    assert_greedy(model, prompt, outcome)
    assert set(outcome.versions) == {version}


def test_older_weights_are_refused_and_a_tied_tensor_under_both_names_is_taken(engine: VllmRolloutEngine) -> None:
    load(engine, qwen2(22))
    with pytest.raises(ValueError, match="older than the loaded"):
        engine.load_weights(next_id(engine, by=-1), hf_tensors(qwen2(23)))
    model, prompt = qwen2(24), prompts(1)[0]
    tensors = dict(hf_tensors(model))
    engine.load_weights(next_id(engine), (tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]}).items())
    assert_greedy(model, prompt, run(engine, [greedy("both", prompt)])["both"])


def test_a_set_with_nan_is_a_set_like_any_other_and_is_gone_with_the_next(engine: VllmRolloutEngine) -> None:
    """What a trainer publishes is loaded bit for bit; under a tied name a NaN equals itself."""
    load(engine, qwen2(36))
    tensors = {name: tensor.clone() for name, tensor in hf_tensors(qwen2(37))}
    tensors["model.embed_tokens.weight"][7, 3] = float("nan")
    weights = next_id(engine)
    engine.load_weights(weights, (tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}).items())
    assert engine.loaded == weights
    model, prompt = qwen2(38), prompts(1)[0]
    load(engine, model)
    assert_greedy(model, prompt, run(engine, [greedy("sound", prompt)])["sound"])


def test_the_callers_tensors_may_change_as_soon_as_the_load_returns(engine: VllmRolloutEngine) -> None:
    model, prompt = qwen2(25), prompts(1, length=20)[0]
    tensors = {name: tensor.clone() for name, tensor in hf_tensors(model)}
    load(engine, qwen2(26))
    engine.load_weights(next_id(engine), tensors.items())
    for tensor in tensors.values():
        tensor.zero_()
    assert_greedy(model, prompt, run(engine, [greedy("after", prompt)])["after"])


def test_running_requests_go_on_under_new_weights_and_those_that_wait_start_with_them(engine: VllmRolloutEngine) -> None:
    old, new = qwen2(27), qwen2(28)
    before = load(engine, old)
    asked = prompts(48, seed=11, length=2 * BLOCK)  # whole blocks of the prefix cache
    asked[24:] = asked[:24]  # and each of them twice
    outcomes: Outcomes = {}
    engine.generate([greedy(f"k{i}", prompt, tokens=60) for i, prompt in enumerate(asked)])
    until_running(engine, 3, outcomes)
    after = load(engine, new)
    seen = {name for name, outcome in outcomes.items() if outcome.tokens}
    first = engine.chunks()
    collect(first, outcomes)
    told = seen | {chunk.id for chunk in first if chunk.version == before and chunk.token_ids}
    finish_all(engine, outcomes)
    crossed = 0
    for i, prompt in enumerate(asked):
        outcome = outcomes[f"k{i}"]
        cut = outcome.versions.count(before)
        assert outcome.versions == [before] * cut + [after] * (len(outcome.versions) - cut)
        assert (cut > 0) == (f"k{i}" in told)  # what was made before came at the latest with the first chunks
        assert_greedy(old, prompt, type(outcome)(outcome.tokens[:cut], outcome.logprobs[:cut]))
        if cut == 0:
            assert_greedy(new, prompt, outcome)  # also where its prompt's keys and values had been cached under the old weights
        crossed += 0 < cut < len(outcome.tokens)
    assert crossed > 0
    assert any(outcome.versions.count(before) == 0 for outcome in outcomes.values())


def test_what_was_cached_under_old_weights_is_not_used_under_new_ones(engine: VllmRolloutEngine) -> None:
    prompt = prompts(1, seed=12, length=3 * BLOCK)[0]
    for seed in (29, 30, 29):
        model = qwen2(seed)
        load(engine, model)
        for attempt in ("first", "cached"):
            assert_greedy(model, prompt, run(engine, [greedy(f"{attempt}{seed}", prompt)])[f"{attempt}{seed}"])


def test_versions_that_come_again_in_a_later_epoch_share_nothing_with_those_of_the_epoch_before(engine: VllmRolloutEngine) -> None:
    prompt, version = prompts(1, seed=15, length=3 * BLOCK)[0], load(engine, qwen2(32))
    assert engine.loaded is not None
    for epoch, seed in ((engine.loaded.epoch, 33), (engine.loaded.epoch + 1, 34)):
        model = qwen2(seed)
        engine.load_weights(weights_id(version + 1, epoch), hf_tensors(model))
        for attempt in ("first", "cached"):
            outcome = run(engine, [greedy(f"{attempt}{seed}", prompt)])[f"{attempt}{seed}"]
            assert_greedy(model, prompt, outcome)
            assert set(outcome.versions) == {version + 1}
            assert set(outcome.epochs) == {epoch}


def interrupted(engine: VllmRolloutEngine, requests: list[Request]) -> tuple[Outcomes, list[Request]]:
    """What they made until an abort of all, and what is left of those that did not end before: some of them have tokens."""
    outcomes: Outcomes = {}
    engine.generate(requests)
    until_running(engine, 4, outcomes)
    engine.pause("abort")
    finish_all(engine, outcomes)
    engine.resume()
    aborted = [request for request in requests if outcomes[request.id].finishes == ["aborted"]]
    assert any(outcomes[request.id].tokens for request in aborted)
    return outcomes, [rest_of(request, outcomes[request.id]) for request in aborted]


def rest_of(request: Request, outcome: Outcome) -> Request:
    """Interrupted state travels in the request."""
    return msgspec.structs.replace(
        request,
        token_ids=(*request.token_ids, *outcome.tokens),
        budget_left=request.budget_left - len(outcome.tokens),
        min_version=max(outcome.versions, default=0),
    )


def assert_whole(model: PreTrainedModel, request: Request, first: Outcome, then: Outcome, atol: float) -> None:
    """Both parts are one response within its budget, and every log-probability is the model's."""
    tokens = first.tokens + then.tokens
    assert then.finishes == ["stop"] or len(tokens) == request.budget_left
    expected = log_probs(model, request.token_ids, tokens)[np.arange(len(tokens)), tokens]
    np.testing.assert_allclose(first.logprobs + then.logprobs, expected, atol=atol)


def test_a_resumed_request_gets_what_is_left_of_its_budget_and_other_random_numbers(engine: VllmRolloutEngine) -> None:
    model = qwen2(31)
    load(engine, model)
    requests = [sampled(f"r{i}", prompt, seed=i, tokens=100) for i, prompt in enumerate(prompts(24, seed=13, length=5))]
    outcomes, rest = interrupted(engine, requests)
    resumed = run(engine, rest)
    for request in requests:
        if (then := resumed.get(request.id)) is not None:
            first = outcomes[request.id]
            assert first.tokens[: len(then.tokens)] != then.tokens
            assert_whole(model, request, first, then, atol=1e-4)


def test_what_an_abort_hands_back_goes_on_in_another_engine(engine: VllmRolloutEngine) -> None:
    model = qwen2(35)
    load(engine, model)
    requests = [sampled(f"h{i}", prompt, seed=i, tokens=100) for i, prompt in enumerate(prompts(16, seed=16, length=5))]
    outcomes, rest = interrupted(engine, requests)
    other = EmbeddedRolloutEngine(qwen2(0), slots=8, prompt_width=WIDTH, kv_width=WIDTH, stop_token_ids=(STOP,))
    other.start()
    assert engine.loaded is not None
    other.load_weights(engine.loaded, hf_tensors(model))
    other.generate(rest)
    resumed: Outcomes = {}
    while chunks := other.chunks():
        collect(chunks, resumed)
    assert resumed.keys() == {request.id for request in rest}
    for request in requests:
        if (then := resumed.get(request.id)) is not None:
            assert_whole(model, request, outcomes[request.id], then, atol=1e-2)
