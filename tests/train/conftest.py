"""A model small enough that a test of gradients takes milliseconds, and batches for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from asyncflow.config import AlgorithmSettings
from asyncflow.contracts.batch import StageBatch
from asyncflow.data.batch import BatchShape
from asyncflow.engines.model import ModelShape, build_model
from asyncflow.engines.train.checkpoint import save_hf
from asyncflow.engines.train.torch_engine import TorchTrainEngine
from transfer_queue.columns import Jagged

SAMPLES, PROMPT_WIDTH, RESPONSE_WIDTH, VOCAB = 4, 6, 7, 16


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("model")
    shape = ModelShape(VOCAB, hidden_size=32, intermediate_size=48, layers=2, heads=2, kv_heads=1, max_positions=32, eos_token_id=2)
    save_hf(build_model(shape), folder)
    return folder


def started(model_dir: Path, settings: AlgorithmSettings) -> TorchTrainEngine:
    engine = TorchTrainEngine(model_dir, settings, total_steps=10)
    engine.initialize()
    return engine


def shape_of(groups: int) -> BatchShape:
    return BatchShape(groups * SAMPLES, PROMPT_WIDTH, RESPONSE_WIDTH)


def random_batch(groups: int, seed: int = 0) -> StageBatch:
    """Groups of SAMPLES rows with every column the loss may read; old log-probabilities are off-policy on purpose."""
    random = np.random.default_rng(seed)
    rows = groups * SAMPLES
    gids = np.repeat(np.arange(groups), SAMPLES)
    prompts = [run for length in random.integers(1, PROMPT_WIDTH + 1, groups) for run in [random.integers(3, VOCAB, length)] * SAMPLES]
    lengths = random.integers(1, RESPONSE_WIDTH + 1, rows)
    batch = StageBatch(gids, np.tile(np.arange(SAMPLES, dtype=np.int32), groups), gids, gids)
    batch.columns["prompt_ids"] = Jagged.of(prompts, "int32")
    batch.columns["response_ids"] = Jagged.of([random.integers(3, VOCAB, length) for length in lengths], "int32")
    for name in ("old_logprobs", "ref_logprobs", "rollout_logprobs"):
        batch.columns[name] = Jagged.of([-2.8 + 0.4 * random.standard_normal(length) for length in lengths], "float32")
    batch.columns["advantages"] = random.standard_normal(rows).astype(np.float32)
    batch.columns["finish"] = np.zeros(rows, dtype=np.uint8)
    return batch
