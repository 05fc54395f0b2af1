"""The synchronous loop that a run at staleness 0 must equal bit for bit: generate, score, forward, advantages, train, one after the other.

It shares engines, loss and the stages' computation with the pipeline, and nothing that moves data between processes. Prompts, seeds and micro-batches
are in canonical order: by gid, then by sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from asyncflow.algorithms.metrics import averages
from asyncflow.algorithms.registry import make_loss
from asyncflow.contracts.batch import StageBatch
from asyncflow.contracts.rollout import Request, Sampling
from asyncflow.contracts.stage import StageCompute, StageContext
from asyncflow.contracts.weights import WeightsId
from asyncflow.data.batch import pad_rows, train_shape
from asyncflow.data.finish import FINISH_CODES
from asyncflow.data.named import load_named
from asyncflow.data.rows import part
from asyncflow.data.task import load_task
from asyncflow.engines.greedy import accuracy, generate_all, make_embedded
from asyncflow.engines.seeds import sample_seed
from asyncflow.engines.train.torch_engine import make_train_engine
from checkpoint_engine.digest import weights_digest
from transfer_queue.columns import Jagged

if TYPE_CHECKING:
    from asyncflow.config import RunConfig

STAGES = ("reward", "actor_forward", "ref_forward", "advantage")  # in the order in which one needs the other


class StepRecord(msgspec.Struct, frozen=True):
    version: int  # after the step
    digest: str  # of these weights, as a publisher would compute it
    reward_mean: float
    grad_norm: float
    metrics: dict[str, float]  # of the loss, divided by the global denominator; counts are not


class ReferenceLoop:
    """One run without a pipeline. `model_dir`: Hugging Face files of version 0."""

    def __init__(self, config: RunConfig, model_dir: Path) -> None:
        self._config, self._task = config, load_task(config)
        self._rollout = make_embedded(model_dir, config)
        self._rollout.start()
        self._engine = make_train_engine(config, model_dir)
        self._engine.initialize()
        self._loss, self._shape = make_loss(config.algorithm), train_shape(config)
        self._stages = [(name, _stage(config, name, model_dir)) for name in STAGES if name in config.stages]
        self._version = 0

    def run(self, steps: int) -> Iterator[StepRecord]:
        for _ in range(steps):
            self.load()
            yield self._train(self._make_groups())

    def load(self) -> None:
        """The trainer's weights to whoever computes with them."""
        weights = WeightsId("policy", 0, self._version)
        self._rollout.load_weights(weights, self._engine.get_per_tensor_param())
        for name, compute in self._stages:
            if name == "actor_forward":
                compute.load_weights(weights, self._engine.get_per_tensor_param())

    def digest(self) -> str:
        return weights_digest(self._engine.get_per_tensor_param())

    def accuracy(self, items: int) -> float:
        """Greedy, on held-out questions, with the weights that were loaded last."""
        return accuracy(self._rollout, self._task, self._task.held_out(items), self._config.rollout.response_width)

    def _make_groups(self) -> StageBatch:
        batch = self._generate()
        for _, compute in self._stages:
            batch.columns.update(compute(batch))
        return batch

    def _generate(self) -> StageBatch:
        """The step's batch of groups: rows in order of gid and sample."""
        size, samples = self._config.batch_size, self._config.rollout.samples_per_prompt
        keys = [(gid, sample) for gid in range(self._version * size, (self._version + 1) * size) for sample in range(samples)]
        prompts = {gid: self._task.prompt(gid) for gid, _ in keys}
        answers = generate_all(self._rollout, [self._request(gid, sample, prompts[gid][0]) for gid, sample in keys])
        rows = [answers[f"{gid}/{sample}"] for gid, sample in keys]
        versions = np.full(len(keys), self._version, dtype=np.int64)
        batch = StageBatch(np.array([gid for gid, _ in keys]), np.array([sample for _, sample in keys], dtype=np.int32), versions, versions)
        batch.columns["prompt_ids"] = Jagged.of([prompts[gid][0] for gid, _ in keys], "int32")
        batch.columns["item"] = [prompts[gid][1] for gid, _ in keys]
        batch.columns["response_ids"] = Jagged.of([tokens for tokens, _, _ in rows], "int32")
        batch.columns["rollout_logprobs"] = Jagged.of([logprobs for _, logprobs, _ in rows], "float32")
        batch.columns["finish"] = np.array([FINISH_CODES[finish] for _, _, finish in rows], dtype=np.uint8)
        return batch

    def _request(self, gid: int, sample: int, prompt: list[int]) -> Request:
        rollout = self._config.rollout
        sampling = Sampling(rollout.temperature, rollout.stop_token_ids)
        return Request(f"{gid}/{sample}", tuple(prompt), sampling, sample_seed(self._config.run.seed, gid, sample), rollout.response_width)

    def _train(self, batch: StageBatch) -> StepRecord:
        denominator, sums = 0.0, dict[str, float]()
        with self._engine.train_mode():
            self._engine.optimizer_zero_grad()
            for micro in _micro_batches(batch, self._shape.rows):
                rows = pad_rows(micro, self._shape)
                result = self._engine.forward_backward_batch(rows, self._loss)
                denominator += self._loss.denominator(rows)
                sums = {name: sums.get(name, 0.0) + value for name, value in result.metrics.items()}
            step = self._engine.optimizer_step(denominator)
            self._engine.lr_scheduler_step()
        self._version += 1
        metrics = averages(sums, denominator, self._loss.counts)
        return StepRecord(self._version, self.digest(), float(batch.scalar("rewards").mean()), step.grad_norm, metrics)


def _stage(config: RunConfig, name: str, model_dir: Path) -> StageCompute:
    stage = config.stage(name)
    compute: StageCompute = load_named(stage.compute, f"stages.{name}.compute")(StageContext(stage, config, config.run_dir, model_dir))
    return compute


def _micro_batches(batch: StageBatch, rows: int) -> Iterator[StageBatch]:
    """Every group has the same number of rows here, so whole groups are whole slices."""
    return (part(batch, start, min(start + rows, len(batch))) for start in range(0, len(batch), rows))
