"""The configuration of the benchmark's run: prompts in, rows out, and a trainer that learns nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec

from asyncflow.config import (
    AlgorithmSettings,
    ColumnSettings,
    EvaluationSettings,
    LimitSettings,
    ModelSettings,
    ResourceSettings,
    RolloutSettings,
    RunConfig,
    RunSettings,
    StageSettings,
    TaskSettings,
    WeightsSettings,
)
from asyncflow.config.check import check
from asyncflow.config.resources import default_resources
from asyncflow.config.root import POLICY
from asyncflow.config.stages import default_stages
from benchmarks.rollout_bench.scope import RUN_SEED, TEMPERATURE, Scope

READER, SEEN = "reader", "seen"  # sees every finished group before the trainer may have it, and says so in a column
ROLLED = ("response_ids", "rollout_logprobs", "token_versions", "finish")
HERE = "benchmarks.rollout_bench.run:Run"  # computes what no worker of this run does
LONG_S = 1e5  # no lease, heartbeat or stall of a benchmark ever runs out: a side waits while the other has its turn


def run_config(scope: Scope, model: Path, folder: Path) -> RunConfig:
    """A checked configuration; one group is a batch, so that there can be an update whenever one is due."""
    stages, resources = default_stages(), default_resources()
    config = RunConfig(
        run=RunSettings(name="rollout-benchmark", seed=RUN_SEED, steps=1 << 30, dir=str(folder), log_level="warning"),
        staleness=None,
        batch_size=1,
        models={POLICY: ModelSettings(path=str(model))},
        task=TaskSettings(path=HERE, item_bytes=1),
        rollout=RolloutSettings(
            engine="vllm",
            slots=scope.slots,
            prompt_width=scope.prompt_tokens,
            response_width=scope.response_tokens,
            temperature=TEMPERATURE,
            stop_token_ids=scope.stop_token_ids,
            samples_per_prompt=scope.rows,
            options={"kv_cache_bytes": scope.kv_bytes},
        ),
        algorithm=AlgorithmSettings(old_logprobs="recompute"),
        stages={
            "rollout": stages["rollout"],
            READER: StageSettings(compute=HERE, inputs=ROLLED, outputs={SEEN: ColumnSettings(dtype="uint8")}, unit="group"),
            "train": msgspec.structs.replace(stages["train"], inputs=(*ROLLED, SEEN)),
        },
        resources={
            READER: ResourceSettings(stages=(READER,)),
            **{role: resources[role] for role in ("source", "rollout", "trainer", "publisher")},
        },
        evaluation=EvaluationSettings(every=None),
        weights=WeightsSettings(transport="pull", export_every=None),
        limits=LimitSettings(lease_s=LONG_S, heartbeat_s=LONG_S, stall_s=LONG_S),
    )
    check(config)
    return config
