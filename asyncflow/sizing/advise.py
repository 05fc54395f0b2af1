"""Advice: which stage is the bottleneck, what the present split gives, which split would be best, and whether asynchrony pays at all."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from asyncflow.sizing.capacity import capacities, capacity, rollout_sizes, splits_with
from asyncflow.sizing.costs import CostTable, Split
from asyncflow.sizing.lengths import ResponseLengths, response_lengths
from asyncflow.sizing.simulate import LEAST_STEPS, Policy, Simulated, simulate
from asyncflow.sizing.synchronous import simulate_synchronous

SATURATED = 0.9  # a stage that needs this share of its capacity is the bottleneck; below it, the window is
WINDOW = "window"
NEAR = 0.98  # alternatives within this share of the best are as good
COARSE = 6  # rollout sizes that are tried first


class StageLoad(msgspec.Struct, frozen=True):
    stage: str
    devices: int
    capacity: float  # response tokens a second if it never waited
    load: float  # share of that capacity which the predicted throughput needs
    busy: float  # share of its time that the simulation saw it busy

    @property
    def spare(self) -> float:
        return max(0.0, 1.0 - self.load)


class Option(msgspec.Struct, frozen=True):
    split: Split
    tokens_per_s_device: float
    staleness_mean: float
    dropped_share: float  # of the groups that ended in the measured steps

    @property
    def tokens_per_s(self) -> float:
        return self.tokens_per_s_device * self.split.devices


class Advice(msgspec.Struct, frozen=True):
    staleness: int | None
    policy: Policy
    devices: int
    stages: list[StageLoad]  # of the present split
    bottleneck: str  # a stage, or "window": the bound and the longest responses, not a stage, set the pace
    present: Option
    best: Option
    alternatives: list[Option]  # near the best, by throughput, the best left out
    synchronous: float  # tokens a second and device of the synchronous loop

    @property
    def gain(self) -> float:
        """Throughput of the best split over that of the present one; they may have different numbers of devices."""
        return self.best.tokens_per_s / self.present.tokens_per_s

    @property
    def pays(self) -> bool:
        """Whether the best split beats the synchronous loop on all devices."""
        return self.best.tokens_per_s_device > self.synchronous


def advise(costs: CostTable, staleness: int | None, policy: Policy, devices: int | None = None, lengths: ResponseLengths | None = None) -> Advice:
    """For `devices` in all (default: as many as the present split has). A few seconds for 64 devices; deterministic."""
    devices = costs.split.devices if devices is None else devices
    lengths = lengths or response_lengths(costs)

    def run(split: Split) -> Simulated:
        return simulate(costs, split, staleness, policy, lengths=lengths)

    mean = float(lengths.trace.mean())
    ran = run(costs.split)
    present = _option(costs, ran, staleness, mean)
    options = _search(lambda split: _option(costs, run(split), staleness, mean), costs, staleness, devices, mean)
    if devices == costs.split.devices:
        options = list({option.split: option for option in [*options, present]}.values())
    ranked = sorted(options, key=lambda option: (-option.tokens_per_s_device, str(option.split)))
    stages = _stages(costs, ran, present, staleness, mean)
    fullest = max(stages, key=lambda stage: stage.load)
    return Advice(
        staleness=staleness,
        policy=policy,
        devices=devices,
        stages=stages,
        bottleneck=fullest.stage if fullest.load >= SATURATED else WINDOW,
        present=present,
        best=ranked[0],
        alternatives=[option for option in ranked[1:] if option.tokens_per_s_device >= NEAR * ranked[0].tokens_per_s_device],
        synchronous=simulate_synchronous(costs, devices, LEAST_STEPS, lengths),
    )


def balanced(costs: CostTable, staleness: int | None, devices: int, rollout: int, row_tokens: float) -> Split:
    """The split with so many rollout devices whose slowest other stage is fastest; of equals the one with most trainer devices."""

    def slowest(split: Split) -> tuple[float, int]:
        rates = capacities(costs, split, staleness, row_tokens)
        return min(rate for stage, rate in rates.items() if stage != "rollout"), split.trainer

    return max(splits_with(costs, devices, rollout), key=slowest)


def _search(run: Callable[[Split], Option], costs: CostTable, staleness: int | None, devices: int, row_tokens: float) -> list[Option]:
    """Simulate a shortlist: sizes of the rollout, the rest balanced by capacity, first coarse, then around the best; then single moves from there."""
    replica, sizes = costs.decode.devices, rollout_sizes(costs, devices)
    known: dict[Split, Option] = {}

    def attempt(split: Split) -> None:
        if split not in known:
            known[split] = run(split)

    def best() -> Split:
        return max(known, key=lambda split: (known[split].tokens_per_s_device, str(split)))

    stride = max(1, len(sizes) // COARSE)
    for size in sizes[stride // 2 :: stride]:
        attempt(balanced(costs, staleness, devices, size, row_tokens))
    while stride > 1:
        stride //= 2
        here = best().rollout
        for size in (here - stride * replica, here + stride * replica):
            if size in sizes:
                attempt(balanced(costs, staleness, devices, size, row_tokens))
    for split in _moves(best(), costs):
        if capacity(costs, split, staleness, row_tokens) / devices > known[best()].tokens_per_s_device:
            attempt(split)
    return list(known.values())


def _moves(split: Split, costs: CostTable) -> list[Split]:
    """Neighbours: one device moved between two other roles, or a replica's worth between rollout and trainer."""
    roles, replica = (*costs.forwards, "trainer"), costs.decode.devices
    moved = [
        msgspec.structs.replace(split, **{giver: getattr(split, giver) - 1, taker: getattr(split, taker) + 1})
        for giver in roles
        for taker in roles
        if giver != taker and getattr(split, giver) > 1
    ]
    moved += [Split(split.rollout + sign * replica, split.actor_forward, split.ref_forward, split.trainer - sign * replica) for sign in (1, -1)]
    return [one for one in moved if one.rollout >= replica and one.trainer >= 1]


def _option(costs: CostTable, run: Simulated, staleness: int | None, row_tokens: float) -> Option:
    """A run of a few steps may spend what was buffered before; what it can sustain is at most the capacity of its slowest stage."""
    ended = len(run.measured) * costs.batch_groups + run.dropped_groups
    tokens_per_s = min(run.tokens_per_s, capacity(costs, run.split, staleness, row_tokens))
    return Option(run.split, tokens_per_s / run.split.devices, run.staleness_mean, run.dropped_groups / ended)


def _stages(costs: CostTable, run: Simulated, present: Option, staleness: int | None, row_tokens: float) -> list[StageLoad]:
    rates = capacities(costs, run.split, staleness, row_tokens)
    return [StageLoad(stage, getattr(run.split, stage), rate, present.tokens_per_s / rate, run.busy[stage]) for stage, rate in rates.items()]
