"""Weights of an emulated model: a few KB of numpy that really change every version, so that publishing, hashing and receiving really happen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from asyncflow.config import RunConfig

SHAPES = {"model.embed_tokens.weight": (32, 16), "model.layers.0.mlp.weight": (16, 16), "model.norm.weight": (16,)}


class EmulatedWeights:
    def __init__(self) -> None:
        self._tensors = {name: np.zeros(shape, dtype=np.float32) for name, shape in SHAPES.items()}

    def step(self) -> None:
        for tensor in self._tensors.values():
            tensor += 1.0

    def __iter__(self) -> Iterator[tuple[str, np.ndarray]]:
        return iter(self._tensors.items())


def prepare(config: RunConfig, model: str) -> Path:
    """For `models.policy.prepare`: a directory that looks like a model's, inside the run's."""
    folder = config.run_dir / "emulated" / model
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_bytes(msgspec.json.encode({"model_type": "emulated"}))
    return folder
