"""Settings: every part owns a record of its own; `RunConfig` holds them all."""

from asyncflow.config.algorithm import AlgorithmSettings
from asyncflow.config.evaluation import EvaluationSettings
from asyncflow.config.flow import FlowSettings
from asyncflow.config.limits import LimitSettings
from asyncflow.config.models import ModelSettings
from asyncflow.config.queue import QueueSettings
from asyncflow.config.resources import ClusterSettings, Place, ResourceSettings
from asyncflow.config.rollout import RolloutSettings
from asyncflow.config.root import POLICY, RunConfig
from asyncflow.config.run import RunSettings
from asyncflow.config.stages import ColumnSettings, StageSettings
from asyncflow.config.task import DataSettings, TaskSettings
from asyncflow.config.weights import WeightsSettings

__all__ = [
    "POLICY",
    "AlgorithmSettings",
    "ClusterSettings",
    "ColumnSettings",
    "DataSettings",
    "EvaluationSettings",
    "FlowSettings",
    "LimitSettings",
    "ModelSettings",
    "Place",
    "QueueSettings",
    "ResourceSettings",
    "RolloutSettings",
    "RunConfig",
    "RunSettings",
    "StageSettings",
    "TaskSettings",
    "WeightsSettings",
]
