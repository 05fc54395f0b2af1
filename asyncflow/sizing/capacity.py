"""What each stage could serve at most, by arithmetic alone. Never below what the simulation reaches, so that a search may leave out splits by it."""

from __future__ import annotations

import msgspec
import numpy as np

from asyncflow.sizing.costs import CostTable, Split, Work
from asyncflow.sizing.lengths import ResponseLengths


def capacities(costs: CostTable, split: Split, staleness: int | None, row_tokens: float) -> dict[str, float]:
    """Response tokens a second of each stage by role, if it never waited and rows had `row_tokens` response tokens on average.

    An upper bound for any run of the model from its start, in which every trained token passed every stage; pauses, calls and tails are left out.
    """
    forwards: dict[str, float] = {stage: _forward(costs, costs.work(stage), getattr(split, stage), row_tokens) for stage in costs.forwards}
    return {"rollout": _rollout(costs, split, staleness, row_tokens), **forwards, "trainer": _trainer(costs, split, row_tokens)}


def capacity(costs: CostTable, split: Split, staleness: int | None, row_tokens: float) -> float:
    """Of the slowest stage: response tokens a second."""
    return min(capacities(costs, split, staleness, row_tokens).values())


def _rollout(costs: CostTable, split: Split, staleness: int | None, row_tokens: float) -> float:
    """n running rows make n / (a + b·n) tokens a second, concave in n; permits and slots bound n, and evenly spread is best. Prefill blocks."""
    replicas = split.rollout // costs.decode.devices
    running = float(costs.decode.max_running)
    if staleness is not None:
        running = min(running, (staleness + 1) * costs.batch_groups * costs.group_rows / replicas)
    rate = running / (costs.decode.step_s + costs.decode.per_running_s * running)
    return replicas * rate / (1 + rate * costs.prefill_s / row_tokens)


def _forward(costs: CostTable, work: Work, devices: int, row_tokens: float) -> float:
    return devices * work.tokens_per_s * row_tokens / (row_tokens + _prompt(costs))


def _trainer(costs: CostTable, split: Split, row_tokens: float) -> float:
    tokens = costs.batch_groups * costs.group_rows * row_tokens
    counted = costs.batch_groups * costs.group_rows * (row_tokens + _prompt(costs))
    minibatches = -(-costs.batch_groups // costs.train.minibatch_groups)
    return tokens / (counted / (split.trainer * costs.train.tokens_per_s) + minibatches * costs.train.minibatch_s)


def _prompt(costs: CostTable) -> int:
    return costs.row_tokens(0)


class LongestMean(msgspec.Struct, frozen=True):
    """The largest mean that the rows of so many whole groups of a trace can have: capacities rise with it, so it makes them bounds for any choice."""

    tokens: float

    @classmethod
    def of(cls, lengths: ResponseLengths, groups: int) -> LongestMean:
        whole = len(lengths.trace) // lengths.group_rows
        means = lengths.trace[: whole * lengths.group_rows].reshape(whole, lengths.group_rows).mean(axis=1)
        return cls(float(np.sort(means)[::-1][: min(groups, whole)].mean()))


def splits(costs: CostTable, devices: int) -> list[Split]:
    """Every split of exactly so many devices: whole replicas, at least one of each role."""
    return [split for rollout in rollout_sizes(costs, devices) for split in splits_with(costs, devices, rollout)]


def rollout_sizes(costs: CostTable, devices: int) -> list[int]:
    """Devices that the rollout may have: whole replicas, one left for every other stage."""
    replica = costs.decode.devices
    return list(range(replica, devices - len(costs.forwards), replica))


def splits_with(costs: CostTable, devices: int, rollout: int) -> list[Split]:
    rest = devices - rollout
    ranges = [range(1, rest) if stage in costs.forwards else range(1) for stage in ("actor_forward", "ref_forward")]
    return [Split(rollout, actor, ref, rest - actor - ref) for actor in ranges[0] for ref in ranges[1] if actor + ref < rest]
