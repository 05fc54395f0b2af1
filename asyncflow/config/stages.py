"""Settings of the pipeline: stages are data, so a new one is an entry here (or in YAML) and a file with its code."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from asyncflow.config.settings import Settings
from asyncflow.contracts.stage import Stage
from transfer_queue.messages import Column

LOOP_STAGES = ("rollout", "train")  # roles with a loop of their own: their code is no StageFactory
DEFAULT_ADVANTAGE = "asyncflow.stages.advantage:make_advantage"
SOURCE = "source"  # producer of the shared columns

SOURCE_COLUMNS = (
    Column(name="prompt_ids", dtype="int32", kind="per_token", producer=SOURCE, shared=True),
    Column(name="item", dtype="uint8", kind="blob", producer=SOURCE, shared=True),
)


class ColumnSettings(Settings, frozen=True):
    """One output column of a stage."""

    dtype: str  # numpy name, or bfloat16 and the like: bits travel, they are never converted.
    kind: Literal["scalar", "per_token", "blob"] = "scalar"  # One value a row, a run of values a row, or bytes.
    optional: bool = False  # A row is ready for its consumers without it.


class SamplerSettings(Settings, frozen=True):
    """In which order the queue serves a stage."""

    name: str = "oldest_first"  # in_order, oldest_first, newest_first, same_version, earliest_deadline, or "module:function", one of your own.
    options: dict[str, Any] = msgspec.field(default_factory=dict)  # Keyword arguments of a function of your own.


class StageSettings(Settings, frozen=True):
    """One stage: what it reads, what it writes, in which unit, with which model, and where its code is. Null removes a stage of the defaults."""

    compute: str = ""  # "module:name" of the stage's factory; empty for `rollout` and `train`, whose workers have loops of their own.
    inputs: tuple[str, ...] = ()  # Columns that must be there before it gets a row.
    outputs: dict[str, ColumnSettings] = msgspec.field(default_factory=dict)  # Columns it writes.
    model: str | None = None  # Entry of `models` that it computes with; null: none, and no torch device.
    unit: Literal["row", "group"] = "row"  # Whether it gets single rows or whole groups.
    terminal: bool = False  # Its acknowledgement is a commit: the trainer.
    limit: int = 32  # Most units in one lease.
    at_least: int = 1  # Fewest units in one lease, for a stage that compares them; after 30 s it gets what there is.
    sampler: SamplerSettings = SamplerSettings()  # Which of the rows or groups that are ready it gets first.
    options: dict[str, Any] = msgspec.field(default_factory=dict)  # The stage's own settings.

    def columns(self, name: str) -> tuple[Column, ...]:
        """Its outputs as typed columns, produced by the stage called `name`."""
        return tuple(Column(name=key, dtype=c.dtype, kind=c.kind, producer=name, optional=c.optional) for key, c in self.outputs.items())

    def stage(self, name: str) -> Stage:
        return Stage(
            name=name,
            compute=self.compute,
            inputs=self.inputs,
            outputs=self.columns(name),
            model=self.model,
            unit=self.unit,
            terminal=self.terminal,
            limit=self.limit,
            at_least=self.at_least,
            options=self.options,
        )


def default_stages() -> dict[str, StageSettings]:
    """The pipeline of GRPO with the forward worker's log-probabilities."""
    return {
        "rollout": _rollout(),
        "reward": StageSettings(
            compute="asyncflow.stages.reward:make_reward",
            inputs=("item", "response_ids", "finish"),
            outputs={"rewards": ColumnSettings(dtype="float32")},
            limit=64,
        ),
        "actor_forward": _forward("old_logprobs", "policy"),
        "ref_forward": _forward("ref_logprobs", "ref"),
        "advantage": StageSettings(
            compute=DEFAULT_ADVANTAGE,
            inputs=("rewards",),
            outputs={"advantages": ColumnSettings(dtype="float32")},
            unit="group",
        ),
        "train": _train(),
    }


def _rollout() -> StageSettings:
    per_token = {"response_ids": "int32", "rollout_logprobs": "float32", "token_versions": "int32"}
    outputs = {name: ColumnSettings(dtype=dtype, kind="per_token") for name, dtype in per_token.items()}
    return StageSettings(inputs=("prompt_ids", "item"), outputs=outputs | {"finish": ColumnSettings(dtype="uint8")}, model="policy", unit="group")


def _train() -> StageSettings:
    rolled = ("prompt_ids", "response_ids", "rollout_logprobs", "token_versions", "finish")
    computed = ("rewards", "old_logprobs", "ref_logprobs", "advantages")
    return StageSettings(inputs=rolled + computed, model="policy", unit="group", terminal=True)


def _forward(output: str, model: str) -> StageSettings:
    """A stage that computes log-probabilities of the response tokens, one whole group a micro-batch."""
    return StageSettings(
        compute="asyncflow.stages.forward:make_forward",
        inputs=("prompt_ids", "response_ids"),
        outputs={output: ColumnSettings(dtype="float32", kind="per_token")},
        model=model,
        unit="group",
        limit=4,
    )
