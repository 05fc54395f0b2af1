"""The stages `actor_forward` and `ref_forward`: log-probabilities of responses by verl's FSDP2 engine, following the trainer or frozen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from asyncflow.contracts.batch import StageBatch
from asyncflow.contracts.stage import StageContext
from asyncflow.contracts.weights import WeightsId
from recipes.verl.conf import verl_conf
from transfer_queue.columns import Jagged

if TYPE_CHECKING:
    import torch

    from recipes.verl.engines import Built


class ForwardStage:
    """prompt_ids, response_ids → one per-token float32 column called `output`."""

    def __init__(self, built: Built, output: str) -> None:
        self._built, self._output = built, output

    def __call__(self, batch: StageBatch) -> Mapping[str, Jagged]:
        from recipes.verl.tensors import of_responses, to_tensordict

        data, _ = to_tensordict(batch, {}, self._built)
        with self._built.engine.eval_mode():
            found = self._built.engine.forward_backward_batch(data, None, forward_only=True)
        return {self._output: of_responses(found["model_output"]["log_probs"], batch.jagged("response_ids"))}

    def load_weights(self, weights: WeightsId, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """A complete set under Hugging Face names, or ValueError and the old weights stay."""
        from recipes.verl.engines import load_whole

        load_whole(self._built.engine.module, tensors, str(weights))

    def close(self) -> None:
        """The process group ends with the process."""


def make_forward(context: StageContext) -> ForwardStage:
    from recipes.verl.engines import REF, TRAIN, build_engine, join_group

    conf, stage = verl_conf(context.config), context.stage
    assert context.model_dir is not None, "the recipe's stage names a model"
    join_group()
    frozen = context.config.models[stage.model or ""].frozen
    return ForwardStage(build_engine(conf, context.model_dir, REF if frozen else TRAIN, forward_only=True), stage.outputs[0].name)
