"""The train engine of the recipe: rank 0 in the trainer's process, the others beside it, behind the contract of AsyncFlow's trainer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncflow.contracts.batch import StageBatch
from asyncflow.contracts.train import Accumulated, StepResult, Training
from asyncflow.data.rows import part
from recipes.verl.conf import verl_conf
from recipes.verl.rank import COUNTS, Rank
from recipes.verl.ranks import OtherRanks

if TYPE_CHECKING:
    import torch

    from asyncflow.config import RunConfig


class VerlTrainEngine:
    """Implements `asyncflow.contracts.train.StepEngine` over FSDP2 ranks of this machine."""

    def __init__(self, config: RunConfig, model_dir: Path) -> None:
        self._config, self._model_dir = config, model_dir
        self.ranks: int = verl_conf(config).trainer.n_gpus_per_node
        self._own: Rank | None = None
        self._others: OtherRanks | None = None

    def initialize(self) -> None:
        """Start the other ranks and build an engine on each. Raises RankFailed."""
        import torch

        store = torch.distributed.TCPStore("127.0.0.1", 0, self.ranks, is_master=True, wait_for_workers=False) if self.ranks > 1 else None
        self._others = OtherRanks(self._config, self._model_dir, self.ranks, store.port if store is not None else 0)
        self._others.tell("build")
        with self._others.beside("build"):
            self._own = Rank(self._config, self._model_dir, 0, self.ranks, store)
        self._others.answers("build")

    @contextmanager
    def train_mode(self) -> Iterator[None]:
        self.on_all("enter")
        yield
        self.on_all("leave")

    def optimizer_zero_grad(self) -> None:
        self.on_all("zero_grad")

    def optimizer_step(self, denominator: float = 1.0) -> StepResult:
        result: StepResult = self.on_all("step", [denominator] * self.ranks)[0]
        return result

    def lr_scheduler_step(self) -> float:
        return float(self.on_all("schedule")[0])

    def get_per_tensor_param(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The others walk along; they do so to the end, whatever becomes of who reads here."""
        own, others = self._both()
        others.tell("weights")
        walk = own.weights()
        try:
            yield from walk
        finally:
            for _ in walk:
                pass
            others.answers("weights")

    def on_all(self, method: str, *arguments: list[Any]) -> list[Any]:
        """The same call on every rank; `arguments`: for each, one value a rank. Returns what each gave."""
        own, others = self._both()
        others.tell(method, *(values[1:] for values in arguments))
        with others.beside(method):
            mine = getattr(own, method)(*(values[0] for values in arguments))
        return [mine, *others.answers(method)]

    def _both(self) -> tuple[Rank, OtherRanks]:
        if self._own is None or self._others is None:
            raise RuntimeError("the train engine has no model yet: call initialize() first")
        return self._own, self._others


class Micro:
    """A `contracts.train.Accumulate`: every rank gets the same number of rows, of much the same length in all."""

    counts = COUNTS

    def __init__(self, engine: VerlTrainEngine) -> None:
        self._engine = engine

    def __call__(self, batch: StageBatch) -> Accumulated:
        """Raises ValueError for rows that do not divide among the ranks."""
        parts = shared_out(batch, self._engine.ranks)
        found = self._engine.on_all("accumulate", parts)
        names = {name for sums in found for name in sums.metrics}
        return Accumulated({name: sum(sums.metrics.get(name, 0.0) for sums in found) for name in names}, found[0].denominator)


def shared_out(batch: StageBatch, ranks: int) -> list[StageBatch]:
    """Equal numbers of rows, longest first, there and back again, so that no rank has all the long ones."""
    if len(batch) % ranks:
        raise ValueError(f"{len(batch)} rows do not divide among {ranks} ranks: each waits for the others; make batch_size × rollout.n a multiple")
    if ranks == 1:
        return [batch]
    lengths = batch.jagged("prompt_ids").lengths + batch.jagged("response_ids").lengths
    longest_first = np.argsort(-lengths, kind="stable")
    turns = np.concatenate([turn if index % 2 == 0 else turn[::-1] for index, turn in enumerate(longest_first.reshape(-1, ranks))])
    return [_picked(batch, np.sort(turns[rank::ranks])) for rank in range(ranks)]


def _picked(batch: StageBatch, rows: np.ndarray) -> StageBatch:
    from asyncflow.data.rows import joined
    from transfer_queue.columns import Jagged

    pieces = [part(batch, row, row + 1) for row in rows.tolist()]
    columns: dict[str, Any] = {}
    for name, column in batch.columns.items():
        values: list[Any] = [piece.columns[name] for piece in pieces]
        if isinstance(column, Jagged):
            columns[name] = joined(values)
        else:
            columns[name] = np.concatenate(values) if isinstance(column, np.ndarray) else [value for piece in values for value in piece]
    return StageBatch(batch.gids[rows], batch.rows[rows], batch.oldest_versions[rows], batch.newest_versions[rows], columns)


def make_training(config: RunConfig, model_dir: Path) -> Training:
    """For `algorithm.engine`."""
    engine = VerlTrainEngine(config, model_dir)
    return Training(engine, Micro(engine))
