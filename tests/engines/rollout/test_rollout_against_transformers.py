"""The engine computes what transformers computes: greedy tokens of `generate`, log-probabilities of a plain forward."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rollout_harness import SHAPE, STOP, new_engine, new_requests, run

from asyncflow.contracts.rollout import Request, Sampling
from asyncflow.engines.model import build_model
from asyncflow.engines.rollout.embedded.sampling import uniforms

MODEL = build_model(SHAPE, seed=1).eval()


def test_greedy_tokens_of_512_queued_prompts_are_those_of_transformers_generate() -> None:
    rng = np.random.default_rng(2)
    prompts = [tuple(row) for row in rng.integers(2, SHAPE.vocab_size, (512, 6)).tolist()]
    engine = new_engine(slots=64)
    engine.generate([Request(f"{i}", prompt, Sampling(0.0), 0, budget_left=12) for i, prompt in enumerate(prompts)])
    capacity = engine.capacity()
    assert (capacity.queued, capacity.running, capacity.free_slots) == (512, 0, 0)
    outcomes = run(engine, [])
    ids, mask = torch.tensor(prompts), torch.ones(512, 6)
    expected = MODEL.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False, eos_token_id=STOP, pad_token_id=0)
    for i in range(len(prompts)):
        got = outcomes[f"{i}"].tokens
        assert got == expected[i, 6 : 6 + len(got)].tolist()
        assert got[-1] == STOP or len(got) == 12


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_sampled_log_probabilities_are_those_of_a_plain_forward_after_temperature(temperature: float) -> None:
    requests = new_requests(24, seed=6, budget=20, temperature=temperature)
    outcomes = run(new_engine(), requests)
    for request in requests:
        tokens, prompt = outcomes[request.id].tokens, len(request.token_ids)
        with torch.inference_mode():
            logits = MODEL(torch.tensor([[*request.token_ids, *tokens]])).logits[0, prompt - 1 : -1]
        reference = torch.log_softmax(logits.double() / temperature, dim=-1)
        np.testing.assert_allclose(outcomes[request.id].logprobs, reference[range(len(tokens)), tokens], atol=2e-5)
        numbers = uniforms(np.full(len(tokens), request.seed, np.uint64), np.arange(len(tokens)) + prompt)
        cdf = reference.exp().cumsum(-1).numpy()
        below = np.array([row[token - 1] if token else 0.0 for row, token in zip(cdf, tokens, strict=True)])
        assert (below <= numbers + 1e-5).all()
        assert (numbers <= cdf[range(len(tokens)), tokens] + 1e-5).all()
