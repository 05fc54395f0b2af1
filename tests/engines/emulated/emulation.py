"""A small machine to emulate, and clocks that only move when they are told to."""

from __future__ import annotations

from asyncflow.contracts.rollout import Request, Sampling
from asyncflow.contracts.weights import WeightsId
from asyncflow.engines.emulated.clock import ModelClock
from asyncflow.engines.emulated.settings import Emulation
from asyncflow.sizing.costs import CostTable, Decode, Lengths, Pause, Split, Training, Work

SCALE = 10.0
TICK_S = 1e-9  # of the clock: a shorter sleep would not move it


class FakeTime:
    """Real seconds. A sleep takes as long as asked for, and `overshoot_s` more."""

    def __init__(self, overshoot_s: float = 0.0) -> None:
        self.now_s, self.overshoot_s, self.sleeps = 100.0, overshoot_s, 0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        self.now_s += max(seconds, TICK_S) + self.overshoot_s

    def clock(self) -> ModelClock:
        return ModelClock(SCALE, self, self.sleep)


def costs() -> CostTable:
    """Responses of 10 tokens; a step of n rows takes 1 + 0.5 n seconds, a prompt token 0.25 s."""
    return CostTable(
        name="test",
        source="made up",
        decode=Decode(step_s=1.0, per_running_s=0.5, max_running=4, devices=2, prefill_s=0.25),
        actor_forward=Work(tokens_per_s=100.0, call_s=1.0),
        ref_forward=Work(tokens_per_s=200.0),
        train=Training(tokens_per_s=100.0, minibatch_groups=2, minibatch_s=2.0),
        pause=Pause(seconds=6.0),
        lengths=Lengths(law="constant", mean=10.0, sigma=0.0, cap=64, prompt=4, seed=1),
        batch_groups=4,
        group_rows=2,
        split=Split(rollout=4, actor_forward=1, ref_forward=1, trainer=2),
        switch_s=1.0,
        counted="response",
    )


def emulation() -> Emulation:
    return Emulation(costs(), SCALE)


def weights(version: int) -> WeightsId:
    return WeightsId("policy", 0, version)


def request(gid: int, row: int, min_version: int = 0) -> Request:
    return Request(f"{gid}/{row}/0/0", (1, 2, 3, 4), Sampling(), 0, 64, min_version)
