"""A cost table: how long each piece of work takes on one device. Written by hand, fitted to a published run, or measured from a run of ours.

Every stage's work is `fixed + per unit` of time; times are seconds of the modelled machine, never of the machine that emulates it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Forward = Literal["actor_forward", "ref_forward"]


class Decode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One decode step of one replica takes `step_s + per_running_s · running` seconds."""

    step_s: float
    per_running_s: float
    max_running: int  # sequences at once on one replica
    devices: int  # of one replica (tensor parallel size)
    prefill_s: float  # a prompt token of each response (no prefix is shared); the replica decodes nothing meanwhile


class Work(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stage that serves tokens (`CostTable.counted`) at a rate a device, plus a fixed cost a call."""

    tokens_per_s: float  # one device
    call_s: float = 0.0


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens_per_s: float  # one device; the trainer's devices work on one batch together
    minibatch_groups: int  # groups a mini-batch
    minibatch_s: float  # fixed, each mini-batch


class Pause(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What taking in a new version costs, and whom."""

    seconds: float
    who: tuple[Literal["rollout", "actor_forward", "trainer"], ...] = ("rollout",)


class Lengths(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Response lengths in tokens. With `trace` set the stored lengths are used and the law only says where they came from."""

    law: Literal["lognormal", "constant"]
    mean: float  # of the law after the cut
    sigma: float  # of the logarithm; 0 for "constant"
    cap: int  # longest response; longer draws are cut to it
    prompt: int  # prompt tokens
    seed: int
    trace: str | None = None  # file of stored lengths, beside the table; `load_costs` makes the path absolute


class Split(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Devices by role; 52-2-2-8 is written in this order. 0 at a forward stage: the pipeline has no such stage."""

    rollout: int
    actor_forward: int
    ref_forward: int
    trainer: int

    @property
    def devices(self) -> int:
        return self.rollout + self.actor_forward + self.ref_forward + self.trainer

    def __str__(self) -> str:
        return f"{self.rollout}-{self.actor_forward}-{self.ref_forward}-{self.trainer}"


class CostTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that the simulation and the emulated engines need to know."""

    name: str
    source: str  # where the numbers are from
    decode: Decode
    actor_forward: Work
    ref_forward: Work
    train: Training
    pause: Pause
    lengths: Lengths
    batch_groups: int
    group_rows: int  # responses a group
    split: Split  # the present one
    switch_s: float  # of the synchronous loop, each of its `switches` a step
    switches: int = 2
    forward_rows: int = 16  # most rows in one call of a forward stage
    counted: Literal["sequence", "response"] = "sequence"  # tokens that forward, ref and train rates count: prompt and response, or response only

    def row_tokens(self, response: int) -> int:
        """Tokens of one row as the rates of forward, ref and train count them."""
        return response + self.lengths.prompt if self.counted == "sequence" else response

    @property
    def forwards(self) -> tuple[Forward, ...]:
        """The forward stages that the pipeline has."""
        stages: tuple[Forward, ...] = ("actor_forward", "ref_forward")
        return tuple(stage for stage in stages if getattr(self.split, stage))

    def work(self, stage: Forward) -> Work:
        return self.actor_forward if stage == "actor_forward" else self.ref_forward

    @property
    def prefill_s(self) -> float:
        """Seconds that one response's prompt takes on a replica."""
        return self.decode.prefill_s * self.lengths.prompt
