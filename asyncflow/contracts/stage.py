"""Stages are data: what a stage reads, what it writes, in which unit, with which model, and where its code is.

Rollout, reward, actor-forward, ref-forward, advantage and trainer are entries; a critic or a teacher is one more entry in a file and in YAML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec
import numpy as np

from transfer_queue.columns import Jagged
from transfer_queue.messages import Column, Unit

if TYPE_CHECKING:
    from asyncflow.contracts.batch import StageBatch
    from asyncflow.contracts.weights import WeightsId

Output = "np.ndarray | Jagged | list[bytes]"


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the pipeline.

    `compute` is "package.module:name" of a `StageFactory`. `model` names an entry of `models` in YAML whose weights the stage follows (None: no
    torch device). `frozen` models are loaded once and never updated (ref).
    """

    name: str
    compute: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[Column, ...] = ()
    model: str | None = None
    unit: Unit = "row"
    terminal: bool = False
    limit: int = 8  # most units a lease
    at_least: int = 1  # fewest units a lease, for a stage that compares them; what there is, when no more came for 30 s
    options: dict[str, Any] = {}  # the stage's own settings


class StageContext(msgspec.Struct):
    """What a factory may know. Built by the worker."""

    stage: Stage
    config: Any  # asyncflow.config.RunConfig
    run_dir: Path
    model_dir: Path | None  # ordinary Hugging Face files of the stage's model at version 0


class StageCompute(Protocol):
    """A stage's code. Called with leased rows, returns its output columns for the same rows in the same order.

    They are written while the next rows are computed, so every call returns memory of its own: a buffer that is filled anew would be written with the
    next rows' values.
    """

    def __call__(self, batch: StageBatch) -> Mapping[str, np.ndarray | Jagged | list[bytes]]: ...

    def load_weights(self, weights: WeightsId, tensors: Any) -> None:
        """Copy a complete set in (stages with a model that is not frozen)."""

    def close(self) -> None: ...


class GroupsFailed(Exception):
    """Raised by `compute`: these groups can never be served (a reward that timed out). They are dropped and counted under `reason`; the rest of the
    lease is handed out again. Any other exception ends the run with the worker's name and traceback."""

    def __init__(self, gids: Sequence[int], reason: str, detail: str) -> None:
        super().__init__(f"groups {list(gids)}: {detail}; they are dropped({reason})")
        self.gids, self.reason = list(gids), reason


class StageFactory(Protocol):
    def __call__(self, context: StageContext) -> StageCompute: ...


Role = Literal["source", "rollout", "trainer", "publisher"] | str
"""Roles with a loop of their own; every other role is a stage loop (fetch → compute → write back)."""
