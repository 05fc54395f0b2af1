"""Optimizer steps of the recipe's train engine on made-up rows: `python -m tests.verl.train_steps MODEL RANKS MICRO AGGREGATION` prints them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from asyncflow.contracts.batch import StageBatch
from asyncflow.data.rows import part
from recipes.verl.main import composed
from recipes.verl.translate import run_config
from tests.verl.recipe_run import settings
from transfer_queue.columns import Jagged

GROUPS, SAMPLES = 4, 4


def rows() -> StageBatch:
    """Responses of 1 to 16 tokens; a log-probability is missing in the third row."""
    random = np.random.default_rng(3)
    count = GROUPS * SAMPLES
    lengths = random.integers(1, 17, count)
    prompts = [random.integers(3, 60, 6) for _ in range(count)]
    old = [random.normal(-4.0, 0.2, length) for length in lengths]
    old[2][0] = np.nan
    columns: dict[str, Any] = {
        "prompt_ids": Jagged.of(prompts, "int32"),
        "response_ids": Jagged.of([random.integers(3, 60, length) for length in lengths], "int32"),
        "old_logprobs": Jagged.of(old, "float32"),
        "rollout_logprobs": Jagged.of([random.normal(-4.0, 0.2, length) for length in lengths], "float32"),
        "advantages": Jagged.of([np.full(length, value) for length, value in zip(lengths, random.normal(0, 1, count), strict=True)], "float32"),
    }
    gids = np.repeat(np.arange(GROUPS), SAMPLES)
    versions = np.zeros(count, dtype=np.int64)
    return StageBatch(gids, np.tile(np.arange(SAMPLES), GROUPS).astype(np.int32), versions, versions, columns)


def main(model: str, ranks: int, micro_groups: int, aggregation: str) -> None:
    from recipes.verl.train import make_training

    overrides = [*settings(Path(model), Path("none.parquet"), 4, 1), f"trainer.n_gpus_per_node={ranks}"]
    overrides += [f"actor_rollout_ref.actor.loss_agg_mode={aggregation}", "data.train_batch_size=4"]
    config = run_config(composed(overrides))
    training = make_training(config, Path(model))
    engine, batch = training.engine, rows()
    engine.initialize()
    norms, totals = [], dict[str, float]()
    for _ in range(2):
        denominator = 0.0
        with engine.train_mode():
            engine.optimizer_zero_grad()
            for start in range(0, len(batch), micro_groups * SAMPLES):
                done = training.accumulate(part(batch, start, start + micro_groups * SAMPLES))
                denominator += done.denominator
                for name, value in done.metrics.items():
                    totals[name] = totals.get(name, 0.0) + value
            norms.append(engine.optimizer_step(denominator).grad_norm)
            engine.lr_scheduler_step()
    weights = {name: float(tensor.double().abs().sum()) for name, tensor in engine.get_per_tensor_param()}
    print(json.dumps({"norms": norms, "denominator": denominator, "weights": weights, "totals": totals}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
