"""Parts that are slow on purpose: the real loss with a wait, and the real engine, of which one replica takes four times as long."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import torch

from asyncflow.algorithms.loss import Metrics, PolicyLoss
from asyncflow.config import RunConfig
from asyncflow.contracts.batch import RowBatch, StageBatch
from asyncflow.contracts.rollout import Chunk
from asyncflow.contracts.stage import StageContext
from asyncflow.engines.rollout.embedded.engine import EmbeddedRolloutEngine
from asyncflow.engines.rollout.factory import make_rollout_engine
from asyncflow.stages.forward import ForwardStage, make_forward
from transfer_queue.columns import Jagged

MICRO_BATCH_S = 0.12
SLOWER = 4  # times


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


class SlowLoss(PolicyLoss):
    """Makes the trainer the bottleneck."""

    def __call__(self, log_probs: torch.Tensor, entropy: torch.Tensor | None, batch: RowBatch) -> tuple[torch.Tensor, Metrics]:
        pause(MICRO_BATCH_S)
        return super().__call__(log_probs, entropy, batch)


def make_slow_forward(context: StageContext) -> ForwardStage:
    """The real stage, a second a group."""
    stage = make_forward(context)
    compute = stage._group

    def slow(group: StageBatch) -> Jagged:
        pause(1.0)
        return compute(group)

    stage._group = slow  # type: ignore[method-assign]
    return stage


def one_slow_replica(config: RunConfig, model_dir: Path, worker: str) -> EmbeddedRolloutEngine:
    """`rollout.engine`: every replica is the embedded engine; the chunks of rollout-1 take `SLOWER` times as long."""
    embedded = RunConfig.decode(config.encode().replace(b'"tests.pipeline.slow:one_slow_replica"', b'"embedded"'))
    engine = make_rollout_engine(embedded, model_dir, worker)
    assert isinstance(engine, EmbeddedRolloutEngine)
    if worker == "rollout-1":
        fast = engine.chunks

        def chunks(wait_s: float = 0.0) -> list[Chunk]:
            start_s = time.monotonic()
            found = fast(wait_s)
            pause((SLOWER - 1) * (time.monotonic() - start_s))
            return found

        engine.chunks = chunks  # type: ignore[method-assign]
    return engine
