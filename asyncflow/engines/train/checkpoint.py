"""A trainer's state on disk: Hugging Face files for the model, tensors for the optimizer. Nothing in it can run code when it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from asyncflow.engines.rollout.embedded.weights import load_complete

MODEL, OPTIMIZER, PROGRESS = "model.safetensors", "optimizer.pt", "progress.json"


class Progress(msgspec.Struct, frozen=True):
    steps: int  # of the learning-rate schedule


def save_hf(model: PreTrainedModel, path: Path) -> None:
    """config.json and model.safetensors under the folder `path`, without a progress bar on somebody's terminal."""
    disable_progress_bar()
    model.save_pretrained(path)


def save_state(path: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Write into the folder `path`; `progress.json` last, so that a folder without it is known to be torn."""
    path.mkdir(parents=True, exist_ok=True)
    (path / PROGRESS).unlink(missing_ok=True)
    save_hf(model, path)
    torch.save(optimizer.state_dict(), path / OPTIMIZER)
    (path / PROGRESS).write_bytes(msgspec.json.encode(Progress(steps)))


def load_state(path: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> int:
    """Inverse of `save_state`; returns the steps. Raises FileNotFoundError for a folder that is not whole, ValueError for another architecture."""
    missing = [name for name in (MODEL, OPTIMIZER, PROGRESS) if not (path / name).is_file()]
    if missing:
        raise FileNotFoundError(f"checkpoint {str(path)!r} lacks {missing}: it is torn or none; nothing was loaded; name a whole one")
    progress = msgspec.json.decode((path / PROGRESS).read_bytes(), type=Progress)
    load_complete(model, load_file(path / MODEL).items(), f"of checkpoint {path.name}")
    state: dict[str, Any] = torch.load(path / OPTIMIZER, weights_only=True)
    optimizer.load_state_dict(state)
    return progress.steps
