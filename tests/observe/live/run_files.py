"""Files of a run as its recorder writes them, made line by line, so that a test decides what a view has seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from asyncflow.config import RunConfig
from asyncflow.config.load import load
from asyncflow.observe.records import EVENTS, METRICS, TIMELINE, Span, StageDepth, StepRecord, TimelineRecord
from tests.config.recipes import MINIMAL
from transfer_queue.messages import Event

ROLES = ("source", "rollout", "scorer", "actor_forward", "ref_forward", "trainer", "publisher")
SHARES = {"busy": 0.6, "wait": 0.3, "paused": 0.1}


def run_config(folder: Path, *overrides: str) -> RunConfig:
    """A configuration whose run directory exists, with config.json in it."""
    recipe, run_dir = folder / "recipe.yaml", folder / "run"
    recipe.write_text(MINIMAL)
    run_dir.mkdir()
    config = load(recipe, ["run.steps=120", "run.name=quick", *overrides])
    config = msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, dir=str(run_dir)))
    (run_dir / "config.json").write_bytes(config.encode())
    return config


def step(version: int, t_s: float | None = None, **changes: Any) -> StepRecord:
    """A plausible step; `changes` replaces fields."""
    record = StepRecord(
        version=version,
        t_s=float(version) if t_s is None else t_s,
        events=version,
        reward_mean=version / 200,
        staleness_mean=1.27,
        staleness_p95=2.0,
        staleness_max=2.0,
        permits=32,
        open_groups=64,
        ledger={"admitted": 1, "generating": 31, "complete": 0, "leased": 32, "trained": 32 * version, "dropped:stale": 3},
        prompts_waiting=5,
        queue_rows=256,
        queue_bytes=4096,
        shares=dict.fromkeys(ROLES, SHARES),
        tokens_per_s=10617.6,
        tokens_per_s_device=2123.5,
        info={"tokens": 2000.0, "reward_mean": version / 200, "loss": 0.5, "step": float(version - 1)},
        stages={"actor_forward": StageDepth(ready_rows=8, leased_rows=16, done_rows=900), "train": StageDepth(120, 256, 7000)},
    )
    return msgspec.structs.replace(record, **changes)


def joined(role: str, incarnation: int = 0, t_s: float = 0.5) -> Event:
    return Event(t_s=t_s, kind="member", reason="joined", member=f"{role}-0#{incarnation}", data={"role": role})


def died(role: str, cause: str, t_s: float = 20.0) -> Event:
    return Event(t_s=t_s, kind="member", reason="died", member=f"{role}-0#0", data={"role": role, "cause": cause})


def evaluated(version: int, accuracy: float, t_s: float) -> Event:
    return Event(t_s=t_s, kind="report", reason="evaluation", member="rollout-0#0", data={"version": version, "accuracy": accuracy})


def spent(role: str, busy_s: float, paused_s: float, from_s: float = 0.0, until_s: float = 10.0) -> TimelineRecord:
    """A worker that was first busy, then paused, and waited for the rest."""
    middle = from_s + busy_s
    spans = [Span("main", "busy", "compute", from_s, middle), Span("main", "paused", "load", middle, middle + paused_s)]
    spans.append(Span("writer", "busy", "put", from_s, until_s))  # another thread's time is not the worker's
    return TimelineRecord(member=f"{role}-0#0", role=role, from_s=from_s, until_s=until_s, spans=spans)


def append(run_dir: Path, *records: StepRecord | Event | TimelineRecord) -> None:
    """To the file each belongs to."""
    for record in records:
        name = METRICS if isinstance(record, StepRecord) else EVENTS if isinstance(record, Event) else TIMELINE
        with (run_dir / name).open("ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")


def typical(run_dir: Path, until: int = 109) -> None:
    """A run that has come to version 109, with one restart and two evaluations."""
    append(run_dir, *(joined(role) for role in ROLES), evaluated(0, 0.256, 1.5))
    append(run_dir, *(step(version) for version in range(1, until + 1)))
    append(run_dir, joined("rollout", 1, 30.0), evaluated(100, 0.91, float(until)))
    append(run_dir, *(spent(role, 7.0, 1.0, until - 10.0, float(until)) for role in ROLES))
    (run_dir / "phases").mkdir()
    for role in ROLES:
        (run_dir / "phases" / f"{role}-0").write_bytes(bytes([1, 2 if role == "rollout" else 0, 0]))
