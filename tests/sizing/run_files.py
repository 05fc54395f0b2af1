"""The files of a run whose costs are known, so that what is measured can be compared."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from asyncflow.config import RolloutSettings, RunConfig, RunSettings
from asyncflow.observe.records import METRICS, TIMELINE, CostSums, StageDepth, StepRecord, TimelineRecord

PROMPT, ROWS, GROUPS, STEPS = 10, 4, 8, 12
TOKENS_PER_S = 500.0


def config(**parts: object) -> RunConfig:
    rollout = RolloutSettings(samples_per_prompt=ROWS, slots=16, response_width=40)
    return RunConfig(run=RunSettings(name="known", steps=STEPS), batch_size=GROUPS, rollout=rollout, staleness=1, **parts)  # type: ignore[arg-type]


def calls(fixed_s: float, per_unit_s: float, sizes: np.ndarray) -> CostSums:
    seconds = fixed_s + per_unit_s * sizes
    return CostSums(len(sizes), float(sizes.sum()), float((sizes**2).sum()), float(seconds.sum()), float((sizes * seconds).sum()))


def lengths() -> np.ndarray:
    return np.random.default_rng(5).integers(1, 40, STEPS * GROUPS * ROWS)


def costs() -> dict[str, CostSums]:
    """What the workers measured: decode 20 ms + 0.5 ms·n, actor 1 ms + 1/2000 s a token, ref 1/4000, train 0.3 s + 1/1000, load 50 ms."""
    rows = lengths() + PROMPT
    return {
        "rollout.decode": calls(0.020, 0.0005, np.arange(1.0, 17.0).repeat(20)),
        "rollout.prefill": calls(0.0, 0.001, np.full(STEPS * GROUPS, float(PROMPT))),
        "actor_forward": calls(0.001, 1 / 2000, rows.astype(float)),
        "actor_forward.io": calls(0.002, 0.0, rows.astype(float)),
        "ref_forward": calls(0.0, 1 / 4000, rows.astype(float)),
        "train": calls(0.3, 1 / 1000, rows.reshape(STEPS, -1).sum(axis=1).astype(float)),
        "load": calls(0.05, 0.0, np.ones(2 * STEPS)),
        "reward": calls(0.004, 0.0, rows.astype(float)),
    }


def step(version: int, sums: dict[str, CostSums]) -> StepRecord:
    depth = StageDepth(0, 0, version * GROUPS * ROWS)
    empty: dict[str, float] = {}
    return StepRecord(
        version=version,
        t_s=10.0 * version,
        events=0,
        reward_mean=None,
        staleness_mean=1.0,
        staleness_p95=1.0,
        staleness_max=1.0,
        permits=0,
        open_groups=0,
        ledger={},
        prompts_waiting=0,
        queue_rows=0,
        queue_bytes=0,
        shares={},
        tokens_per_s=TOKENS_PER_S,
        tokens_per_s_device=None,
        info=empty,
        stages={"actor_forward": depth},
        costs=sums,
    )


def write_run(run_dir: Path, sums: dict[str, CostSums] | None = None, steps: int = STEPS, settings: RunConfig | None = None) -> Path:
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "config.json").write_bytes((settings or config()).encode())
    records = [step(version, costs() if sums is None else sums) for version in range(1, steps + 1)]
    (run_dir / METRICS).write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
    timeline = TimelineRecord("rollout-0#1", "rollout", 0.0, 10.0, [], lengths().tolist())
    (run_dir / TIMELINE).write_bytes(msgspec.json.encode(timeline) + b"\n")
    return run_dir
