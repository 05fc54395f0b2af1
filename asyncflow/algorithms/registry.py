"""Which loss a run trains with: named in YAML by its import path, built from the algorithm's settings."""

from __future__ import annotations

from asyncflow.algorithms.loss import Loss
from asyncflow.config.algorithm import AlgorithmSettings
from asyncflow.data.named import load_named


def make_loss(settings: AlgorithmSettings) -> Loss:
    """The loss that `algorithm.loss` names. It is called with the settings; its own are under `algorithm.options`."""
    loss: Loss = load_named(settings.loss, "algorithm.loss")(settings)
    return loss
