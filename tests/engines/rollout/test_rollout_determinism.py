"""Bits of a request depend on (weights, token_ids, seed, sampling) and on nothing else."""

from __future__ import annotations

import functools

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_harness import SHAPE, Outcome, collect, finish_all, load, new_engine, new_requests, run

from asyncflow.contracts.rollout import Request, Sampling
from asyncflow.engines.model import build_model
from asyncflow.engines.rollout.embedded import EmbeddedRolloutEngine
from asyncflow.engines.rollout.embedded.forward import Forward

REQUESTS = new_requests(30, seed=3)
ORDERS = st.permutations(range(len(REQUESTS)))
ARRIVALS = st.lists(st.integers(1, 9), min_size=1, max_size=12)
ABORTED = st.sets(st.integers(0, len(REQUESTS) - 1), max_size=4)
ENGINE = functools.cache(new_engine)


@functools.cache
def alone() -> dict[str, Outcome]:
    """Every request with idle neighbours only."""
    return {key: outcome for request in REQUESTS for key, outcome in run(ENGINE(), [request]).items()}


@settings(max_examples=25, deadline=None)
@given(order=ORDERS, arrivals=ARRIVALS, aborted=ABORTED)
def test_arrivals_slots_neighbours_refills_and_aborts_do_not_change_a_bit(order: list[int], arrivals: list[int], aborted: set[int]) -> None:
    expected, engine = alone(), ENGINE()
    outcomes: dict[str, Outcome] = {}
    waiting = [REQUESTS[i] for i in order]
    for count in arrivals:
        engine.generate(waiting[:count])
        waiting = waiting[count:]
        collect(engine.chunks(), outcomes)
    engine.generate(waiting)
    cut = [f"r{i}" for i in aborted]
    engine.abort(cut)
    finish_all(engine, outcomes)
    assert outcomes.keys() == expected.keys()
    for key, outcome in outcomes.items():
        n = len(outcome.tokens)
        assert outcome.tokens == expected[key].tokens[:n]
        assert outcome.bits == expected[key].bits[: 4 * n]
        assert outcome.finishes == expected[key].finishes or (key in cut and outcome.finishes == ["aborted"])


def test_the_property_above_really_moves_requests_between_slots_and_refills_them() -> None:
    engine = new_engine()
    seen: dict[str, set[int]] = {}
    for requests in (REQUESTS, REQUESTS[::-1]):
        engine.generate(requests)
        while engine.chunks():
            for key, slot in engine._table.slot_of.items():
                seen.setdefault(key, set()).add(slot)
    assert len(REQUESTS) > engine.capacity().slots
    assert sum(len(slots) > 1 for slots in seen.values()) > len(REQUESTS) // 3


@pytest.mark.parametrize("slots", [4, 5, 7, 13, 64])
def test_every_slot_count_from_four_on_gives_a_request_the_same_bits_in_any_company(slots: int) -> None:
    engine = new_engine(slots=slots, prefill_rows=1 + slots % 4)
    together = run(engine, REQUESTS)
    for request in REQUESTS[::5]:
        single = run(engine, [request])[request.id]
        assert (single.tokens, single.bits) == (together[request.id].tokens, together[request.id].bits)


@pytest.mark.parametrize("widths", [{"intermediate_size": 200}, {"hidden_size": 100, "intermediate_size": 203, "heads": 3, "kv_heads": 3}])
def test_activations_that_do_not_fill_whole_vectors_give_the_same_bits_in_any_row(widths: dict[str, int]) -> None:
    shape, settings_ = msgspec.structs.replace(SHAPE, **widths), {"slots": 12, "prompt_width": 5, "prefill_rows": 3}
    requests = new_requests(120, seed=5, group=2)
    forwards, backwards = run(new_engine(shape=shape, **settings_), requests), run(new_engine(shape=shape, **settings_), requests[::-1])
    assert forwards == backwards


def test_more_decode_steps_a_call_give_longer_chunks_and_the_same_bits() -> None:
    outcomes = run(new_engine(steps_per_call=5), REQUESTS)
    assert {key: (o.tokens, o.bits) for key, o in outcomes.items()} == {key: (o.tokens, o.bits) for key, o in alone().items()}


def test_another_seed_gives_other_tokens_and_another_temperature_other_log_probabilities() -> None:
    base = Request("a", (3, 4, 5), Sampling(1.0), seed=7, budget_left=30)
    other_seed, warmer = msgspec.structs.replace(base, id="b", seed=8), msgspec.structs.replace(base, id="c", sampling=Sampling(1.5))
    outcomes = run(ENGINE(), [base, other_seed, warmer])
    assert outcomes["a"].tokens != outcomes["b"].tokens
    assert outcomes["a"].bits != outcomes["c"].bits


def test_a_prompt_prefilled_once_for_its_group_has_the_bits_of_a_prefill_of_its_own() -> None:
    forward = Forward(build_model(SHAPE, seed=1).eval(), slots=4, kv_width=48, prefill_rows=4, prompt_width=8)
    rng = np.random.default_rng(5)
    prompts = [tuple(rng.integers(0, SHAPE.vocab_size, n).tolist()) for n in (3, 8, 19, 1)]
    together, reversed_ = forward.prefill(prompts), forward.prefill(prompts[::-1])[::-1]
    for prompt, a, b in zip(prompts, together, reversed_, strict=True):
        single = forward.prefill([prompt])[0]
        n = len(prompt)  # beyond it lies padding, which is masked and overwritten
        assert torch.equal(single[:, :, :, :n], a[:, :, :, :n])
        assert torch.equal(single[:, :, :, :n], b[:, :, :, :n])


def test_a_group_shares_one_prefill_and_gives_the_bits_of_separate_ones() -> None:
    engine = new_engine()
    group = [Request(f"s{i}", (4, 9, 2, 6), Sampling(), seed=i, budget_left=12) for i in range(20)]
    before = engine._prompts.prefills
    shared = run(engine, group)
    assert engine._prompts.prefills == before + 1
    for version, request in enumerate(group, start=1):
        load(engine, version, seed=1)  # the same weights again: only clears the store
        single = run(engine, [request])[request.id]
        assert (single.tokens, single.bits) == (shared[request.id].tokens, shared[request.id].bits)
    assert engine._prompts.prefills == before + 1 + len(group)


def test_a_machine_on_which_rows_disagree_is_refused_at_start() -> None:
    model = build_model(SHAPE, seed=0)
    model.lm_head.register_forward_hook(lambda _module, _args, out: out + 1e-6 * torch.arange(len(out))[:, None, None])
    engine = EmbeddedRolloutEngine(model, slots=8, prompt_width=8, kv_width=16)
    with pytest.raises(RuntimeError, match=r"slots = 8.*multiple of 32"):
        engine.start()
