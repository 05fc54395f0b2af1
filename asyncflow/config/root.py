"""`RunConfig`: the whole of a run's settings, as the YAML spells them and as every worker receives them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from asyncflow.config.algorithm import AlgorithmSettings
from asyncflow.config.evaluation import EvaluationSettings
from asyncflow.config.flow import FlowSettings
from asyncflow.config.limits import LimitSettings
from asyncflow.config.models import ModelSettings
from asyncflow.config.observe import ObserveSettings
from asyncflow.config.queue import QueueSettings
from asyncflow.config.resources import ClusterSettings, Place, ResourceSettings, default_resources, place
from asyncflow.config.rollout import RolloutSettings
from asyncflow.config.run import RunSettings
from asyncflow.config.settings import Settings
from asyncflow.config.stages import DEFAULT_ADVANTAGE, StageSettings, default_stages
from asyncflow.config.task import DataSettings, TaskSettings
from asyncflow.config.weights import WeightsSettings
from asyncflow.contracts.stage import Stage

POLICY = "policy"  # the model that is trained; its name is also that of its topic


def default_models() -> dict[str, ModelSettings]:
    return {POLICY: ModelSettings(), "ref": ModelSettings(same_as=POLICY, frozen=True)}


class RunConfig(Settings, frozen=True):
    """Everything about one run."""

    run: RunSettings = msgspec.field(default_factory=RunSettings)  # Name, seed, length, directory.
    staleness: int | None = 2  # Most versions between a trained group's oldest token and the trainer; 0: synchronous; null: bytes only.
    batch_size: int = 32  # Groups in one global batch, that is in one optimizer step.
    flow: FlowSettings = msgspec.field(default_factory=FlowSettings)  # Policy at the bound.
    models: dict[str, ModelSettings] = msgspec.field(default_factory=default_models)  # Models by name; `policy` is the trained one.
    task: TaskSettings = msgspec.field(default_factory=TaskSettings)  # Items and scores.
    data: DataSettings = msgspec.field(default_factory=DataSettings)  # How prompts are fed.
    rollout: RolloutSettings = msgspec.field(default_factory=RolloutSettings)  # Generation.
    algorithm: AlgorithmSettings = msgspec.field(default_factory=AlgorithmSettings)  # The update.
    evaluation: EvaluationSettings = msgspec.field(default_factory=EvaluationSettings)  # Accuracy on held-out items.
    weights: WeightsSettings = msgspec.field(default_factory=WeightsSettings)  # From the trainer to everybody.
    stages: dict[str, StageSettings] = msgspec.field(default_factory=default_stages)  # The pipeline.
    cluster: ClusterSettings = msgspec.field(default_factory=ClusterSettings)  # Accelerators there are.
    launch: Literal["local", "ray"] = "local"  # Where workers run: all on this machine, or on the nodes of a Ray cluster.
    resources: dict[str, ResourceSettings] = msgspec.field(default_factory=default_resources)  # Workers by role.
    queue: QueueSettings = msgspec.field(default_factory=QueueSettings)  # Controller and shards.
    limits: LimitSettings = msgspec.field(default_factory=LimitSettings)  # Deadlines and bounds.
    observe: ObserveSettings = msgspec.field(default_factory=ObserveSettings)  # Who follows the run while it goes on.

    def encode(self) -> bytes:
        """JSON that `decode` reads back to an equal record; what a worker receives at registration."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> RunConfig:
        """Inverse of `encode`. Raises msgspec.ValidationError for bytes of another version of the program."""
        return msgspec.json.decode(data, type=cls)

    @property
    def run_dir(self) -> Path:
        return Path(self.run.dir)

    @property
    def total_groups(self) -> int:
        """Groups that the run trains in all."""
        if self.run.total_groups is not None:
            return self.run.total_groups
        assert self.run.steps is not None  # `check` refuses a config with neither
        return self.run.steps * self.batch_size

    @property
    def total_steps(self) -> int:
        """Versions that the run makes; the last batch may be short."""
        return -(-self.total_groups // self.batch_size)

    def stage(self, name: str) -> Stage:
        stage = self.stages[name].stage(name)
        if self.algorithm.control == "shuffle_rewards" and stage.compute == DEFAULT_ADVANTAGE:  # its rewards are shuffled within a whole batch
            return msgspec.structs.replace(stage, limit=self.batch_size, at_least=self.batch_size)
        return stage

    def stages_of(self, role: str) -> list[Stage]:
        """Stages that a role without a loop of its own serves, in its order."""
        return [self.stage(name) for name in self.resources[role].stages]

    def places(self) -> list[Place]:
        """Every worker but controller and shards, with devices and threads."""
        return place(self.resources, self.cluster)
