"""From the settings to a rollout engine: the embedded one, vLLM, or one of your own by its import path."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from asyncflow.config.rollout import EMBEDDED
from asyncflow.contracts.rollout import RolloutEngine
from asyncflow.data.named import load_named

if TYPE_CHECKING:
    from asyncflow.config import RunConfig


def make_rollout_engine(config: RunConfig, model_dir: Path, worker: str) -> RolloutEngine:
    """`rollout.engine` names "embedded", "vllm" or "module:function", called as this function is. `worker`: the replica's name (rollout-0)."""
    if config.rollout.engine != EMBEDDED:
        engine: RolloutEngine = load_named(config.rollout.engine_path, "rollout.engine")(config, model_dir, worker)
        return engine
    from asyncflow.engines.greedy import make_embedded

    return make_embedded(model_dir, config)
