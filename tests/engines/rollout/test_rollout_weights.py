"""Weights in the engine: whole or not at all, a version per token, nothing answered from what older weights cached."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from rollout_harness import SHAPE, Outcome, collect, finish_all, load, new_engine, new_requests, run

from asyncflow.contracts.rollout import Request, Sampling
from asyncflow.contracts.weights import WeightsId
from asyncflow.engines.model import ModelShape, build_model, hf_tensors, load_hf
from asyncflow.engines.rollout.embedded import EmbeddedRolloutEngine, NonFiniteLogitsError
from checkpoint_engine.cache import HostCache

NEXT = WeightsId("policy", 0, 1)
Tensors = list[tuple[str, torch.Tensor]]


def _tensors(seed: int = 5) -> Tensors:
    return list(hf_tensors(build_model(SHAPE, seed=seed)))


def _raising() -> Iterator[tuple[str, torch.Tensor]]:
    yield from _tensors()[:4]
    raise ConnectionError("the sender died")


BAD = {
    "missing": lambda: _tensors()[1:],
    "unknown": lambda: [*_tensors(), ("model.nothing.weight", torch.zeros(1))],
    "shape": lambda: [(n, t[..., :-1] if n.endswith("q_proj.weight") else t) for n, t in _tensors()],
    "dtype": lambda: [(n, t.bfloat16()) for n, t in _tensors()],
    "twice with other values": lambda: [*_tensors(), ("lm_head.weight", torch.zeros(SHAPE.vocab_size, SHAPE.hidden_size))],
    "sender dies": _raising,
}


@pytest.mark.parametrize("how", BAD)
def test_a_failed_load_leaves_the_old_weights_serving(how: str) -> None:
    engine, requests = new_engine(), new_requests(8)
    before = run(engine, requests)
    with pytest.raises((ValueError, ConnectionError)):
        engine.load_weights(NEXT, BAD[how]())
    assert engine.loaded == WeightsId("policy", 0, 0)
    assert run(engine, requests) == before


def test_older_weights_are_refused_and_a_new_epoch_may_go_back_in_version() -> None:
    engine = new_engine()
    load(engine, 3, seed=3)
    with pytest.raises(ValueError, match="older than the loaded"):
        load(engine, 2, seed=2)
    engine.load_weights(WeightsId("policy", 1, 1), _tensors())
    assert engine.loaded == WeightsId("policy", 1, 1)


def test_a_sender_may_reuse_its_buffer_between_tensors() -> None:
    def reused() -> Iterator[tuple[str, torch.Tensor]]:
        buffer = torch.empty(max(t.numel() for _, t in _tensors()))
        for name, tensor in _tensors():
            view = buffer[: tensor.numel()].view(tensor.shape)
            view.copy_(tensor)
            yield name, view

    engine, requests = new_engine(), new_requests(8)
    engine.load_weights(NEXT, reused())
    assert _bits(run(engine, requests)) == _bits(run(new_engine(seed=5), requests))


def test_what_a_host_cache_holds_still_is_loaded_without_a_second_model_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def cloned(tensor: torch.Tensor) -> torch.Tensor:
        raise AssertionError(f"{list(tensor.shape)} was copied aside")

    cache, engine, requests = HostCache(spare=0), new_engine(), new_requests(8)
    cache.put(NEXT, _tensors())
    lease = cache.lease("rollout-0", 30.0)
    assert lease is not None
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "clone", cloned)
        engine.load_weights(NEXT, lease)
    lease.release()
    cache.put(WeightsId("policy", 0, 2), _tensors(7))  # over it: the model has copies of its own
    assert _bits(run(engine, requests)) == _bits(run(new_engine(seed=5), requests))


def test_a_tied_model_takes_its_embedding_once_or_under_both_names_and_an_untied_one_needs_both() -> None:
    names = [name for name, _ in _tensors()]
    assert "lm_head.weight" not in names
    embedding = dict(_tensors())["model.embed_tokens.weight"]
    new_engine().load_weights(NEXT, [*_tensors(), ("lm_head.weight", embedding)])
    untied = ModelShape(vocab_size=21, hidden_size=64, intermediate_size=96, heads=2, tied=False)
    engine = EmbeddedRolloutEngine(build_model(untied), slots=4, prompt_width=8, kv_width=16)
    engine.start()
    complete = list(hf_tensors(build_model(untied, seed=2)))
    with pytest.raises(ValueError, match=r"missing.*lm_head"):
        engine.load_weights(NEXT, [item for item in complete if item[0] != "lm_head.weight"])
    engine.load_weights(NEXT, complete)


def test_running_requests_keep_their_tokens_and_go_on_with_a_version_per_token() -> None:
    requests = [Request(f"{i}", (2, 3, 4), Sampling(), i, 20) for i in range(6)]
    old, new = run(new_engine(), requests), run(new_engine(seed=5), requests)
    engine, outcomes = new_engine(), {}
    engine.generate(requests)
    for _ in range(3):
        collect(engine.chunks(), outcomes)
    engine.load_weights(NEXT, _tensors())
    finish_all(engine, outcomes)
    both = [o for o in outcomes.values() if set(o.versions) == {0, 1}]
    assert both
    for key, outcome in outcomes.items():
        assert outcome.versions == sorted(outcome.versions)
        assert outcome.versions.count(0) == min(3, len(outcome.tokens))
        assert outcome.tokens[:3] == old[key].tokens[:3]
    assert any(o.bits not in (old[key].bits, new[key].bits) for key, o in outcomes.items())


def test_after_a_load_a_prompt_seen_before_is_answered_as_if_it_never_had_been() -> None:
    engine, requests = new_engine(), new_requests(12)
    run(engine, requests)
    load(engine, 1, seed=5)
    assert _bits(run(engine, requests)) == _bits(run(new_engine(seed=5), requests))


def test_after_each_of_five_updates_greedy_tokens_and_log_probabilities_are_those_of_a_fresh_engine() -> None:
    """Every update comes while other requests run, and finds their prompts' keys and values in the store."""
    engine, requests = new_engine(), new_requests(12, seed=7, temperature=0.0)
    seen = set[bytes]()
    for version in range(1, 6):
        engine.generate([Request(f"other{version}/{i}", request.token_ids, Sampling(), i, 20) for i, request in enumerate(requests)])
        engine.chunks()
        load(engine, version, seed=20 + version)
        outcomes = {key: outcome for key, outcome in run(engine, requests).items() if key.startswith("r")}
        assert all(set(outcome.versions) == {version} for outcome in outcomes.values())
        assert _bits(outcomes) == _bits(run(new_engine(seed=20 + version), requests))
        seen.add(b"".join(outcome.bits for outcome in outcomes.values()))
    assert len(seen) == 5


def test_a_queued_request_starts_with_the_weights_loaded_meanwhile() -> None:
    engine = new_engine(slots=4)
    requests = [Request(f"{i}", (2, 3, 4), Sampling(1.0), i, 6) for i in range(8)]
    engine.generate(requests)
    outcomes: dict[str, Outcome] = {}
    collect(engine.chunks(), outcomes)
    load(engine, 1, seed=5)
    finish_all(engine, outcomes)
    fresh = run(new_engine(slots=4, seed=5), requests)
    late = [key for key, outcome in outcomes.items() if set(outcome.versions) == {1}]
    assert late
    assert all(outcomes[key].bits == fresh[key].bits for key in late)


def test_logits_that_are_not_finite_name_the_request_and_end_the_engine() -> None:
    engine = new_engine()
    engine.load_weights(NEXT, [(n, torch.full_like(t, float("nan")) if n == "model.norm.weight" else t) for n, t in _tensors()])
    engine.generate([Request("victim", (3, 4), Sampling(), 1, 5)])
    with pytest.raises(NonFiniteLogitsError, match=r"'victim'.*version 1") as caught:
        engine.chunks()
    assert caught.value.ids == ["victim"]
    with pytest.raises(RuntimeError, match="not finite"):
        engine.chunks()


def test_hugging_face_files_make_the_same_engine_as_the_model_in_memory(tmp_path: object) -> None:
    model = build_model(SHAPE, seed=5)
    model.save_pretrained(tmp_path)
    engine = EmbeddedRolloutEngine(str(tmp_path), slots=8, prompt_width=8, kv_width=48, prefill_rows=3, stop_token_ids=(1,))
    engine.start()
    engine.load_weights(WeightsId("policy", 0, 0), hf_tensors(load_hf(str(tmp_path))))
    assert run(engine, new_requests(6)) == run(new_engine(seed=5), new_requests(6))
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        load_hf(f"{tmp_path}/nowhere")


def _bits(outcomes: dict[str, Outcome]) -> dict[str, tuple[list[int], bytes]]:
    return {key: (outcome.tokens, outcome.bits) for key, outcome in outcomes.items()}
