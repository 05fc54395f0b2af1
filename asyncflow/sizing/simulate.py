"""The pipeline without overhead: what a perfect control plane would reach with this cost table, split and staleness.

The rules are those of the real controller (`transfer_queue/controller/`), whose window arithmetic is used here; everything that a message, a copy or
a wake-up costs is left out. What it assumes of the workers, and what a run must be set to for a comparison:
- a replica with room for a whole group has a pull open for one group (`rollout.pull_groups: 1`); pulls are answered in the order in which they came;
- forward stages take single rows (`unit: row`), at most `forward_rows` of them a call, oldest version first; reward and advantage take no time;
- the trainer takes `minibatch_groups` groups at a time (`algorithm.micro_batch_groups`), at staleness 0 the whole batch;
- a commit publishes at once; weights load when a replica is not prefilling; running rows go on afterwards (`pause_mode: keep`).
"""

from __future__ import annotations

from collections import deque
from typing import Literal

import msgspec

from asyncflow.sizing.costs import CostTable, Forward, Split
from asyncflow.sizing.lengths import ResponseLengths, response_lengths
from asyncflow.sizing.model.clock import SimClock
from asyncflow.sizing.model.forward import ForwardStage
from asyncflow.sizing.model.group import SimGroup
from asyncflow.sizing.model.replica import Replica
from asyncflow.sizing.model.trainer import SimTrainer
from transfer_queue.controller.window import WindowRules
from transfer_queue.messages import Window

Policy = Literal["wait", "drop"]
LEAST_STEPS = 10  # measured, unless a caller wants more
UNBOUNDED_BATCHES = 16  # staleness null is bounded by bytes; a cost table knows none, so open groups are bounded by this many batches


class SimStep(msgspec.Struct, frozen=True):
    """One commit."""

    t_s: float
    tokens: int  # response tokens trained
    staleness_mean: float  # over its groups, by oldest token, at consumption
    staleness_max: int
    dropped: int  # groups that expired with it


class Simulated(msgspec.Struct, frozen=True):
    split: Split
    warmup: int  # steps before the measured ones
    steps: list[SimStep]  # all, warm-up first
    busy: dict[str, float]  # role → share of its devices' time, warm-up included

    @property
    def measured(self) -> list[SimStep]:
        return self.steps[self.warmup :]

    @property
    def seconds(self) -> float:
        """Of the measured steps."""
        return self.steps[-1].t_s - (self.steps[self.warmup - 1].t_s if self.warmup else 0.0)

    @property
    def tokens_per_s(self) -> float:
        return sum(step.tokens for step in self.measured) / self.seconds

    @property
    def tokens_per_s_device(self) -> float:
        """Trained response tokens a second over the devices of all roles."""
        return self.tokens_per_s / self.split.devices

    @property
    def staleness_mean(self) -> float:
        return sum(step.staleness_mean for step in self.measured) / len(self.measured)

    @property
    def staleness_max(self) -> int:
        return max(step.staleness_max for step in self.measured)

    @property
    def dropped_groups(self) -> int:
        """Of the measured steps."""
        return sum(step.dropped for step in self.measured)


def warmup_steps(staleness: int | None) -> int:
    """Commits until every group that started together at version 0 is gone, and the first that did not has been waited for."""
    return 2 + (staleness if staleness is not None else 0)


def measured_steps(staleness: int | None, least: int = LEAST_STEPS) -> int:
    """At least so many, and whole windows of `staleness` + 1 steps.

    Batches that started together end together, so with a tail one step in `staleness` + 1 waits for the longest responses and the others are short,
    for hundreds of steps. A part of a window counts too many or too few of the long ones.
    """
    window = 1 + (staleness or 0)
    return -(-least // window) * window


def first_measured(count: int, staleness: int | None) -> int:
    """Of a run of `count` steps, where the last whole windows after its warm-up begin; the end of the warm-up where there is no whole one."""
    warmup, window = warmup_steps(staleness), 1 + (staleness or 0)
    whole = max(count - warmup, 0) // window * window
    return count - whole if whole else warmup


def simulate(
    costs: CostTable,
    split: Split,
    staleness: int | None,
    policy: Policy,
    steps: int | None = None,
    warmup: int | None = None,
    total_steps: int | None = None,
    lengths: ResponseLengths | None = None,
) -> Simulated:
    """`steps` measured commits (default: `measured_steps`) after `warmup` (default: `warmup_steps`).

    `total_steps`: the run ends there, so prompts stop before; default: never.
    Pass `lengths` to share one trace between many calls. The same arguments give the same result, to the bit.
    """
    warmup = warmup_steps(staleness) if warmup is None else warmup
    steps = measured_steps(staleness) if steps is None else steps
    pipeline = Pipeline(costs, split, staleness, policy, total_steps, lengths or response_lengths(costs))
    pipeline.run(warmup + steps)
    return Simulated(split, warmup, pipeline.steps, pipeline.busy())


class Pipeline:
    """The queue's part: open groups, permits, versions, commits."""

    def __init__(
        self, costs: CostTable, split: Split, staleness: int | None, policy: Policy, total_steps: int | None, lengths: ResponseLengths
    ) -> None:
        self._costs, self._split, self._lengths = costs, split, lengths
        self._target = None if total_steps is None else total_steps * costs.batch_groups
        budget = UNBOUNDED_BATCHES * costs.batch_groups if staleness is None else 1 << 60
        self._rules = WindowRules(Window(batch=costs.batch_groups, staleness=staleness, policy=policy, budget_bytes=budget, group_bytes=1))
        self._clock = SimClock()
        self._version = self._next_gid = self._trained = 0
        self._open: dict[int, SimGroup] = {}
        self.steps: list[SimStep] = []
        replicas = split.rollout // costs.decode.devices
        self._replicas = [Replica(index, costs, self._clock, self._rows_finished, self._park) for index in range(replicas)]
        self._parked: deque[Replica] = deque()
        self._admission_due = False
        self._forwards = {stage: self._forward(stage) for stage in costs.forwards}
        self._trainer = SimTrainer(costs, split.trainer, self._rules.ordered, staleness == 0, self._clock, self._commit)

    def _forward(self, stage: Forward) -> ForwardStage:
        pause_s = self._costs.pause.seconds if stage == "actor_forward" and stage in self._costs.pause.who else 0.0
        return ForwardStage(self._costs, self._costs.work(stage), getattr(self._split, stage), pause_s, self._clock, self._forwarded)

    def run(self, steps: int) -> None:
        for replica in self._replicas:
            self._enqueue(replica)
        self._admit()
        while len(self.steps) < steps:
            assert self._clock.step(), f"the simulated pipeline stands still at version {self._version} with {len(self._open)} open groups"

    def busy(self) -> dict[str, float]:
        seconds, split = self._clock.now, self._split
        return {
            "rollout": sum(replica.busy_s for replica in self._replicas) / (len(self._replicas) * seconds),
            **{stage: forward.busy_s / (getattr(split, stage) * seconds) for stage, forward in self._forwards.items()},
            "trainer": self._trainer.busy_s / seconds,
        }

    # -------------------------------------------------------------- admission

    def _park(self, replica: Replica) -> None:
        self._enqueue(replica)
        self._admit_soon()

    def _admit_soon(self) -> None:
        """After everything else of this moment: replicas that load or become free together share the prompts, as if all their pulls were there."""
        if not self._admission_due and self._rules.has_permit(len(self._open)):  # a commit or a drop, which may change this, asks again
            self._admission_due = True
            self._clock.at(self._clock.now, self._admit)

    def _enqueue(self, replica: Replica) -> None:
        if not replica.parked and replica.free >= self._costs.group_rows:
            replica.parked = True
            self._parked.append(replica)

    def _admit(self) -> None:
        self._admission_due = False
        while self._rules.has_permit(len(self._open)) and (self._target is None or self._trained + len(self._open) < self._target):
            needed = self._rules.min_version(self._version, len(self._open))
            replica = next((parked for parked in self._parked if parked.loaded >= needed), None)
            if replica is None:
                return
            self._parked.remove(replica)
            replica.parked = False
            self._start_group(replica)
            self._enqueue(replica)

    def _start_group(self, replica: Replica) -> None:
        lengths = self._lengths.group(self._next_gid)
        group = SimGroup(self._next_gid, replica.next_version, lengths, replica, len(self._forwards) * len(lengths) or len(lengths))
        self._next_gid += 1
        self._open[group.gid] = group
        self._trainer.outside[group.version] += 1
        replica.admit(group)

    # -------------------------------------------------------------- rows and batches

    def _rows_finished(self, replica: Replica, rows: list[tuple[SimGroup, int]]) -> None:
        for group, sample in rows:
            for forward in self._forwards.values():
                forward.put(group, sample)
            if not self._forwards:
                self._forwarded(group)
        self._park(replica)

    def _forwarded(self, group: SimGroup) -> None:
        group.missing -= 1
        if not group.missing:
            self._trainer.put(group)

    def _commit(self, batch: list[SimGroup]) -> None:
        ages = [self._version - group.version for group in batch]
        for group in batch:
            self._end(group)
        self._trained += len(batch)
        self._version += 1
        dropped = self._drop_stale() if self._rules.expires else 0
        self.steps.append(SimStep(self._clock.now, sum(group.tokens for group in batch), sum(ages) / len(ages), max(ages), dropped))
        self._publish()
        self._admit_soon()

    def _end(self, group: SimGroup) -> None:
        group.open = False
        del self._open[group.gid]

    def _drop_stale(self) -> int:
        stale = [group for group in self._open.values() if not group.leased and self._rules.is_stale(group.version, self._version)]
        for group in stale:
            self._end(group)
            self._trainer.leave(group.version)
            group.replica.cancel(group)
            self._enqueue(group.replica)
        return len(stale)

    def _publish(self) -> None:
        for replica in self._replicas:
            replica.load(self._version)
        if (actor := self._forwards.get("actor_forward")) is not None:
            actor.publish(self._version)
        if "trainer" in self._costs.pause.who:
            self._trainer.pause(self._costs.pause.seconds)
