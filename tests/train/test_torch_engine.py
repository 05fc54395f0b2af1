"""The train engine: what it computes, what it refuses, what it keeps."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from asyncflow.algorithms.loss import PolicyLoss
from asyncflow.config import AlgorithmSettings
from asyncflow.contracts.batch import RowBatch
from asyncflow.data.batch import pad_rows
from asyncflow.engines.train.schedule import learning_rate
from asyncflow.engines.train.torch_engine import TorchTrainEngine
from checkpoint_engine.digest import weights_digest
from tests.train.conftest import random_batch, shape_of, started

SETTINGS = AlgorithmSettings(learning_rate=1e-2, grad_clip=0.5)


def step(engine: TorchTrainEngine, seed: int = 0) -> None:
    loss = PolicyLoss(SETTINGS)
    rows = pad_rows(random_batch(2, seed), shape_of(2))
    engine.optimizer_zero_grad()
    engine.forward_backward_batch(rows, loss)
    engine.optimizer_step(loss.denominator(rows))
    engine.lr_scheduler_step()


def digest(engine: TorchTrainEngine) -> str:
    return weights_digest(engine.get_per_tensor_param())


def test_log_probabilities_equal_those_of_the_plain_model_row_by_row(model_dir: Path) -> None:
    engine = started(model_dir, SETTINGS)
    batch = random_batch(2)
    rows = pad_rows(batch, shape_of(2))
    rows.temperature = 0.7
    found = engine.forward_backward_batch(rows, None, forward_only=True).log_probs
    for row in range(len(batch)):
        prompt, response = batch.jagged("prompt_ids")[row].tolist(), batch.jagged("response_ids")[row].tolist()
        logits = engine.model(input_ids=torch.tensor([prompt + response])).logits[0].float() / 0.7
        expected = logits[len(prompt) - 1 : -1].log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]
        torch.testing.assert_close(found[row, : len(response)], expected, rtol=1e-5, atol=1e-5)
        assert not found[row, len(response) :].any()


def test_padding_rows_and_padding_tokens_add_nothing(model_dir: Path) -> None:
    loss = PolicyLoss(SETTINGS)

    def gradient(rows: RowBatch) -> torch.Tensor:
        engine = started(model_dir, SETTINGS)
        engine.forward_backward_batch(rows, loss)
        grads = [parameter.grad.flatten() for parameter in engine.model.parameters() if parameter.grad is not None]
        return torch.cat(grads)

    tight, loose = pad_rows(random_batch(1), shape_of(1)), pad_rows(random_batch(1), shape_of(3))
    torch.testing.assert_close(gradient(tight), gradient(loose), rtol=1e-4, atol=1e-6)
    loose.input_ids[~loose.attention_mask] = 5
    torch.testing.assert_close(gradient(tight), gradient(loose), rtol=1e-4, atol=1e-6)


def test_the_same_steps_give_the_same_bits_and_other_steps_do_not(model_dir: Path) -> None:
    engines = [started(model_dir, SETTINGS) for _ in range(3)]
    for index, engine in enumerate(engines):
        for seed in (1, 2, 3) if index < 2 else (2, 1, 3):
            step(engine, seed)
    assert digest(engines[0]) == digest(engines[1])
    assert digest(engines[0]) != digest(engines[2])


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone_and_is_reported(model_dir: Path) -> None:
    engine = started(model_dir, SETTINGS)
    before = digest(engine)
    batch = random_batch(1)
    batch.scalar("advantages")[0] = float("inf")
    engine.forward_backward_batch(pad_rows(batch, shape_of(1)), PolicyLoss(SETTINGS))
    assert engine.optimizer_step(10.0).skipped
    assert digest(engine) == before


def test_a_batch_of_masked_rows_only_is_skipped_and_reported(model_dir: Path) -> None:
    engine, loss = started(model_dir, SETTINGS), PolicyLoss(SETTINGS)
    before = digest(engine)
    batch = random_batch(1)
    batch.scalar("finish")[:] = 2
    rows = pad_rows(batch, shape_of(1))
    result = engine.forward_backward_batch(rows, loss)
    assert result.metrics["masked_rows"] == 4
    assert loss.denominator(rows) == 0
    assert engine.optimizer_step(loss.denominator(rows)).skipped
    assert digest(engine) == before


def test_the_gradient_is_clipped_after_division(model_dir: Path) -> None:
    norms = []
    for denominator in (1.0, 1000.0):
        engine = started(model_dir, SETTINGS)
        engine.forward_backward_batch(pad_rows(random_batch(1), shape_of(1)), PolicyLoss(SETTINGS))
        result = engine.optimizer_step(denominator)
        left = torch.cat([parameter.grad.flatten() for parameter in engine.model.parameters() if parameter.grad is not None]).norm()
        norms.append((result.grad_norm, float(left)))
    assert norms[0][0] == pytest.approx(1000 * norms[1][0], rel=1e-4)
    assert norms[0][1] == pytest.approx(SETTINGS.grad_clip, rel=1e-3)
    assert norms[1][1] == pytest.approx(norms[1][0], rel=1e-4)


def test_training_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(model_dir: Path, tmp_path: Path) -> None:
    straight, stopped, resumed = (started(model_dir, SETTINGS) for _ in range(3))
    for seed in (1, 2):
        step(straight, seed)
        step(stopped, seed)
    stopped.save_checkpoint(tmp_path)
    resumed.load_checkpoint(tmp_path)
    for engine in (straight, resumed):
        step(engine, 3)
    assert digest(straight) == digest(resumed)
    (tmp_path / "progress.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"progress\.json"):
        resumed.load_checkpoint(tmp_path)


def test_weights_are_loaded_whole_or_not_at_all(model_dir: Path) -> None:
    engine = started(model_dir, SETTINGS)
    step(engine)
    tensors = {name: tensor.clone() for name, tensor in engine.get_per_tensor_param()}
    trained = digest(engine)
    step(engine)
    first = next(iter(tensors))
    with pytest.raises(ValueError, match="missing"):
        engine.load_weights({name: tensor for name, tensor in tensors.items() if name != first})
    assert digest(engine) != trained
    engine.load_weights(tensors)
    assert digest(engine) == trained


def test_the_learning_rate_rises_and_falls_as_the_settings_say() -> None:
    constant = AlgorithmSettings(learning_rate=1.0, warmup_steps=4)
    assert [learning_rate(constant, s, 100) for s in (0, 1, 3, 4, 99)] == [0.25, 0.5, 1.0, 1.0, 1.0]
    for schedule in ("linear", "cosine"):
        settings = AlgorithmSettings(learning_rate=1.0, warmup_steps=2, schedule=schedule)
        rates = [learning_rate(settings, s, 12) for s in range(20)]
        assert rates[2] == 1.0
        assert rates[11] == pytest.approx(0.1)
        assert rates[12:] == pytest.approx([0.1] * 8)
        assert all(a >= b for a, b in itertools.pairwise(rates[2:]))
    assert learning_rate(AlgorithmSettings(learning_rate=1.0, schedule="linear"), 0, 1) == 1.0


def test_an_engine_that_was_not_initialized_says_so(model_dir: Path) -> None:
    with pytest.raises(RuntimeError, match="initialize"):
        TorchTrainEngine(model_dir, SETTINGS, 1).optimizer_zero_grad()
