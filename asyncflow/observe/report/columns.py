"""Numbers by name, one value a step, in arrays: a run of a hundred thousand steps with a hundred numbers each is 80 MB, not 3 GB of records."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping

import numpy as np

from asyncflow.observe.records import StepRecord

NAN = math.nan  # in here: not measured


class Columns:
    """`row(values)` appends; a name that was missing in some rows holds NaN there."""

    def __init__(self) -> None:
        self.rows = 0
        self._columns: dict[str, array[float]] = {}

    def row(self, values: Mapping[str, float | None]) -> None:
        for name, value in values.items():
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = array("d", [NAN]) * self.rows
            column.append(NAN if value is None else float(value))
        self.rows += 1
        for column in self._columns.values():
            if len(column) < self.rows:
                column.append(NAN)

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> np.ndarray:
        """float64 [rows]; all NaN for a name that never came."""
        column = self._columns.get(name)
        return np.full(self.rows, NAN) if column is None else np.array(column, dtype=np.float64)

    def under(self, prefix: str) -> dict[str, np.ndarray]:
        """Columns whose names start with `prefix`, by the rest of their names, in order of appearance."""
        return {name[len(prefix) :]: self[name] for name in self._columns if name.startswith(prefix)}


def step_row(step: StepRecord) -> dict[str, float | None]:
    """A line of metrics.jsonl, flat. What is counted by name and absent is 0: `ledger` leaves out the zeros."""
    row: dict[str, float | None] = {
        "version": step.version,
        "t_s": step.t_s,
        "reward": step.reward_mean,
        "staleness.mean": step.staleness_mean,
        "staleness.p95": step.staleness_p95,
        "staleness.max": step.staleness_max,
        "permits": None if step.permits < 0 else step.permits,  # -1: bytes alone bound them
        "open": step.open_groups,
        "prompts": step.prompts_waiting,
        "queue_rows": step.queue_rows,
        "queue_bytes": step.queue_bytes,
        "tokens_per_s": step.tokens_per_s,
        "tokens_per_s_device": step.tokens_per_s_device,
    }
    row |= {f"info.{name}": value for name, value in step.info.items()}
    row |= {f"ledger.{state}": float(count) for state, count in step.ledger.items()}
    for role, shares in step.shares.items():
        row |= {f"share.{role}.{activity}": share for activity, share in shares.items()}
    for stage, depth in step.stages.items():
        row |= {f"ready.{stage}": float(depth.ready_rows), f"leased.{stage}": float(depth.leased_rows)}
    return row
