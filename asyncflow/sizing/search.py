"""The best split by trying all of them: what the quick advice is held against.

Left out are only splits that cannot win: by their capacity, which bounds the simulation from its start (`asyncflow/sizing/capacity.py`), and by the
simulation of their rollout and trainer devices with almost instant forwards. The second is no theorem, for a faster
stage may change which replica gets which prompt; `SLACK` is above the largest such gain that tests found (not needed where `relax` is off).
"""

from __future__ import annotations

import msgspec

from asyncflow.sizing.capacity import LongestMean, capacity, splits
from asyncflow.sizing.costs import CostTable, Split
from asyncflow.sizing.lengths import ResponseLengths, response_lengths
from asyncflow.sizing.simulate import Policy, measured_steps, simulate

SLACK = 0.02


class Found(msgspec.Struct, frozen=True):
    """Throughputs are from the start of the run: warm-up counts, or capacity would be no bound."""

    best: Split
    tokens_per_s: float  # of the best
    ceiling: float  # no split is above it: the best, or the largest bound of a split that was left out
    simulated: int
    splits: int


class Objective:
    """Tokens a second from a run's start, remembered: what the first steps trained, over their time. `least`: of `measured_steps`."""

    def __init__(self, costs: CostTable, staleness: int | None, policy: Policy, least: int, lengths: ResponseLengths | None = None) -> None:
        self.costs, self.staleness, self.policy, self.steps = costs, staleness, policy, measured_steps(staleness, least)
        self.lengths = lengths or response_lengths(costs)
        self._longest = LongestMean.of(self.lengths, self.steps * costs.batch_groups).tokens
        self._known: dict[Split, float] = {}

    def __len__(self) -> int:
        return len(self._known)

    def best(self, devices: int) -> list[Split]:
        """The best of what was tried with so many devices, if anything was."""
        return sorted((split for split in self._known if split.devices == devices), key=self, reverse=True)[:1]

    def __call__(self, split: Split) -> float:
        if split not in self._known:
            self._known[split] = self._simulate(split)
        return self._known[split]

    def bound(self, split: Split) -> float:
        return capacity(self.costs, split, self.staleness, self._longest)

    def relaxed(self, rollout: int, trainer: int, devices: int) -> float:
        """With as many rollout and trainer devices, and forward devices without end."""
        many = dict.fromkeys(self.costs.forwards, 16 * devices)
        return self(msgspec.structs.replace(Split(rollout, 0, 0, trainer), **many)) * (1 + SLACK)

    def most(self, split: Split, devices: int, limit: float) -> float:
        """A bound of this split: first with all the trainer devices that its rollout leaves, and, if that is above `limit`, with its own."""
        every = self.relaxed(split.rollout, devices - split.rollout - len(self.costs.forwards), devices)
        return every if every <= limit else self.relaxed(split.rollout, split.trainer, devices)

    def _simulate(self, split: Split) -> float:
        return simulate(self.costs, split, self.staleness, self.policy, self.steps, warmup=0, lengths=self.lengths).tokens_per_s


def exhaustive(objective: Objective, devices: int, floor: float = 0.0, relax: bool = True) -> Found:
    """The best of all splits of `devices`. Left out is a split whose bound is above neither the best so far nor `floor` (tokens a second).

    With floor 0 `ceiling` is the best itself; a floor makes it fast, and `ceiling` then says what the best can at most be.
    """
    every = splits(objective.costs, devices)
    bounds = {split: objective.bound(split) for split in every}
    best = max([*objective.best(devices), max(every, key=lambda split: bounds[split])], key=objective)
    ceiling = 0.0
    for split in sorted(every, key=lambda one: (-bounds[one], str(one))):
        bound = bounds[split]
        limit = max(objective(best), floor)
        if bound > limit and relax:
            bound = min(bound, objective.most(split, devices, limit))
        if bound <= limit:
            ceiling = max(ceiling, bound if split != best else 0.0)
        elif objective(split) > objective(best):
            best = split
    return Found(best, objective(best), max(ceiling, objective(best)), len(objective), len(every))
