"""WeightsId and its counterpart in the queue's messages: one identity, two libraries that do not know each other."""

from __future__ import annotations

from checkpoint_engine.weights_id import WeightsId
from transfer_queue.messages import ModelVersion

__all__ = ["ModelVersion", "WeightsId", "to_model_version", "to_weights_id"]


def to_model_version(weights: WeightsId) -> ModelVersion:
    return ModelVersion(weights.model, weights.epoch, weights.version, weights.digest)


def to_weights_id(version: ModelVersion) -> WeightsId:
    return WeightsId(version.model, version.epoch, version.version, version.digest)
