"""The stages `actor_forward` and `ref_forward`: log-probabilities of responses under the trained model, or under a frozen one.

One group a forward pass, always in one shape, so that the bits of a row depend on its group and the weights only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from transformers import PreTrainedModel

from asyncflow.contracts.batch import StageBatch
from asyncflow.contracts.stage import StageContext
from asyncflow.contracts.weights import WeightsId
from asyncflow.data.batch import BatchShape, forward_shape, pad_rows, unpad
from asyncflow.data.rows import by_group, joined
from asyncflow.engines.model import load_hf
from asyncflow.engines.rollout.embedded.weights import load_complete
from asyncflow.engines.train.log_probs import response_log_probs
from transfer_queue.columns import Jagged


class ForwardStage:
    """prompt_ids, response_ids → one per-token float32 column called `output`. Needs whole groups: unit `group`."""

    def __init__(self, model: PreTrainedModel, output: str, shape: BatchShape) -> None:
        self._model, self._output, self._shape = model.eval().requires_grad_(False), output, shape

    def __call__(self, batch: StageBatch) -> Mapping[str, Jagged]:
        return {self._output: joined([self._group(group) for group in by_group(batch, ("prompt_ids", "response_ids"))])}

    def _group(self, group: StageBatch) -> Jagged:
        with torch.inference_mode():
            log_probs, _ = response_log_probs(self._model, pad_rows(group, self._shape))
        return unpad(log_probs, group.jagged("response_ids").lengths)

    def load_weights(self, weights: WeightsId, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """A complete set under Hugging Face names, or ValueError and the old weights stay."""
        load_complete(self._model, tensors, str(weights))

    def close(self) -> None:
        """Nothing is held beyond the model."""


def make_forward(context: StageContext) -> ForwardStage:
    stage = context.stage
    if context.model_dir is None or len(stage.outputs) != 1:
        outputs = [column.name for column in stage.outputs]
        rule = "a forward stage needs a model and one output, so it does not start; correct the YAML"
        raise ValueError(f"stages.{stage.name}: model = {stage.model!r}, outputs = {outputs}: {rule}")
    return ForwardStage(load_hf(context.model_dir), stage.outputs[0].name, forward_shape(context.config))
