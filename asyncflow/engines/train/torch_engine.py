"""The train engine for one rank: a transformers model, AdamW, sums of gradients that are divided once. CPU or one CUDA device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from asyncflow.config.algorithm import AlgorithmSettings
from asyncflow.contracts.batch import RowBatch
from asyncflow.contracts.train import ForwardResult, LossFunction, StepResult
from asyncflow.engines.model import hf_tensors, load_hf
from asyncflow.engines.rollout.embedded.weights import load_complete
from asyncflow.engines.train.checkpoint import load_state, save_state
from asyncflow.engines.train.log_probs import response_log_probs
from asyncflow.engines.train.schedule import learning_rate

if TYPE_CHECKING:
    from asyncflow.config import RunConfig


class TorchTrainEngine:
    """Implements `asyncflow.contracts.train.TrainEngine`. `initialize` must come first."""

    def __init__(self, model_dir: Path, settings: AlgorithmSettings, total_steps: int, device: str = "cpu") -> None:
        self._model_dir, self._settings, self._total_steps, self._device = model_dir, settings, total_steps, torch.device(device)
        self._steps = 0  # of the schedule
        self._with_entropy = settings.entropy_coef > 0
        self._model: PreTrainedModel | None = None
        self._optimizer: torch.optim.Optimizer | None = None

    def initialize(self) -> None:
        """Load the model's Hugging Face files and make the optimizer. Dropout does not exist in this family, so train and eval agree."""
        self._model = load_hf(self._model_dir)
        torch.nn.Module.to(self._model, self._device)
        settings = self._settings
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
            lr=learning_rate(settings, 0, self._total_steps),
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    @property
    def model(self) -> PreTrainedModel:
        return self._ready()[0]

    @contextmanager
    def train_mode(self) -> Iterator[None]:
        self.model.train()
        yield

    @contextmanager
    def eval_mode(self) -> Iterator[None]:
        self.model.eval()
        yield

    def forward_backward_batch(self, batch: RowBatch, loss_function: LossFunction | None, forward_only: bool = False) -> ForwardResult:
        """One micro-batch. Gradients of its loss *sum* are added to what earlier micro-batches of this step left."""
        batch = to_device(batch, self._device)
        with torch.set_grad_enabled(not forward_only):
            log_probs, entropy = response_log_probs(self.model, batch, with_entropy=self._with_entropy and not forward_only)
            if loss_function is None:
                if not forward_only:
                    raise ValueError("loss_function is None: a backward pass needs one, so no gradient was made; pass one, or forward_only=True")
                return ForwardResult(log_probs.detach())
            loss, metrics = loss_function(log_probs, entropy, batch)
            if not forward_only:
                loss.backward()
        total = float(loss.detach())
        return ForwardResult(log_probs.detach(), total, {"loss": total, **metrics})

    def optimizer_zero_grad(self) -> None:
        self._ready()[1].zero_grad(set_to_none=True)

    def optimizer_step(self, denominator: float = 1.0) -> StepResult:
        """Mean gradient = sum / denominator, clipped to `grad_clip`. A denominator of 0 (every row masked) or a gradient that is not finite leaves
        the weights as they are and is reported as skipped."""
        if denominator < 0:
            raise ValueError(f"denominator = {denominator}: a count cannot be negative; the step is refused; sum loss.denominator() over the batch")
        model, optimizer = self._ready()
        lr = float(optimizer.param_groups[0]["lr"])
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        if denominator == 0 or not gradients:
            return StepResult(grad_norm=0.0, skipped=True, lr=lr)
        torch._foreach_div_(gradients, denominator)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), self._settings.grad_clip)
        skipped = not bool(torch.isfinite(norm))
        if not skipped:
            optimizer.step()
        return StepResult(grad_norm=float(norm), skipped=skipped, lr=lr)

    def lr_scheduler_step(self) -> float:
        """Move the schedule on, also after a skipped step. Returns the rate of the next step."""
        self._steps += 1
        return self._set_rate()

    def _set_rate(self) -> float:
        lr = learning_rate(self._settings, self._steps, self._total_steps)
        for group in self._ready()[1].param_groups:
            group["lr"] = lr
        return lr

    def get_per_tensor_param(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Live tensors, detached: copy before the next step."""
        return hf_tensors(self.model)

    def load_weights(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """A complete set, or ValueError and nothing is changed. The optimizer's averages stay."""
        load_complete(self.model, tensors.items(), "given to the train engine")

    def save_checkpoint(self, path: Path) -> None:
        """Model (Hugging Face files), optimizer and schedule under the folder `path`."""
        model, optimizer = self._ready()
        save_state(path, model, optimizer, self._steps)

    def load_checkpoint(self, path: Path) -> None:
        model, optimizer = self._ready()
        self._steps = load_state(path, model, optimizer)
        self._set_rate()

    def get_data_parallel_rank(self) -> int:
        return 0

    def get_data_parallel_size(self) -> int:
        return 1

    def get_data_parallel_group(self) -> object | None:
        return None

    def _ready(self) -> tuple[PreTrainedModel, torch.optim.Optimizer]:
        if self._model is None or self._optimizer is None:
            raise RuntimeError("the train engine has no model yet: call initialize() first")
        return self._model, self._optimizer


def to_device(batch: RowBatch, device: torch.device) -> RowBatch:
    """The batch with every tensor on `device`; the same object's fields where they are there already."""
    moved = {f.name: getattr(batch, f.name).to(device) for f in fields(batch) if isinstance(getattr(batch, f.name), torch.Tensor)}
    return replace(batch, columns={name: column.to(device) for name, column in batch.columns.items()}, **moved)


def make_train_engine(config: RunConfig, model_dir: Path, device: str = "cpu") -> TorchTrainEngine:
    return TorchTrainEngine(model_dir, config.algorithm, config.total_steps, device)
