"""What stages without a model have in common: nothing to load, nothing to free."""

from __future__ import annotations

from typing import Any

from asyncflow.contracts.weights import WeightsId


class Weightless:
    """Base of stages that follow no model."""

    def load_weights(self, weights: WeightsId, tensors: Any) -> None:
        raise TypeError(f"{type(self).__name__} computes without a model, so weights {weights} have no place in it; set `model: null` for its stage")

    def close(self) -> None:
        """Nothing is held."""
