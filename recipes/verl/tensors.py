"""Rows of the queue as verl's engines take them: jagged columns in a TensorDict, prompt and response in one run, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from asyncflow.contracts.batch import StageBatch
from transfer_queue.columns import Jagged

if TYPE_CHECKING:
    from tensordict import TensorDict

    from recipes.verl.engines import Built


def to_tensordict(batch: StageBatch, columns: Mapping[str, str], built: Built, ranks: int = 1) -> tuple[TensorDict, int]:
    """(R rows, response tokens that are left out). `columns`: verl's name → the queue's, one value a response token each.

    A value that is not finite is missing: its token is masked and counted, never read as 0. Memory of the queue is copied: it may be read-only.
    """
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    prompts, responses = batch.jagged("prompt_ids"), batch.jagged("response_ids")
    taken = {name: _aligned(batch, queue, responses) for name, queue in columns.items()}
    there = np.ones(len(responses.values), dtype=bool)
    for column in taken.values():
        there &= np.isfinite(column.values)
    mask = Jagged(there.astype(np.int64), responses.offsets)
    whole = [np.concatenate([prompts[row], responses[row]]) for row in range(len(batch))]
    tensors = {
        "prompts": _runs(prompts, np.int64),
        "responses": _runs(responses, np.int64),
        "response_mask": _runs(mask, np.int64),
        "loss_mask": _runs(mask, np.int64),
        "input_ids": _nested([torch.from_numpy(run.astype(np.int64)) for run in whole]),
        "position_ids": _nested([torch.arange(len(run)) for run in whole]),
        **{name: _runs(Jagged(np.where(there, column.values, 0.0), column.offsets), np.float32) for name, column in taken.items()},
    }
    data = TensorDict(tensors, batch_size=[len(batch)])
    given = dict(built.given)
    if built.most_rows is not None:
        given["micro_batch_size_per_gpu"] = largest_divisor(len(batch), built.most_rows)
    tu.assign_non_tensor(data, **given, global_batch_size=len(batch) * ranks)
    return data, int((~there).sum())


def of_responses(log_probs: torch.Tensor, responses: Jagged) -> Jagged:
    """[R, prompt and response] as verl's engine gives it, value at the place before its token, → one value a response token."""
    values, ends = log_probs.values().float().cpu().numpy(), log_probs.offsets().cpu().numpy()[1:]
    runs = [values[end - length - 1 : end - 1] for end, length in zip(ends, responses.lengths, strict=True)]
    return Jagged(np.concatenate(runs), responses.offsets)


def largest_divisor(rows: int, most: int) -> int:
    """Of `rows`, at most `most`: verl cuts a batch into micro-batches of one size."""
    return next(size for size in range(min(rows, most), 0, -1) if rows % size == 0)


def _aligned(batch: StageBatch, name: str, responses: Jagged) -> Jagged:
    column = batch.jagged(name)
    if not np.array_equal(column.lengths, responses.lengths):
        row = int(np.flatnonzero(column.lengths != responses.lengths)[0])
        found = f"{column.lengths[row]} values for {responses.lengths[row]} response tokens"
        raise ValueError(f"column {name!r} of group {batch.gids[row]} row {batch.rows[row]} has {found}; the batch is refused; write one a token")
    return column


def _runs(column: Jagged, dtype: Any) -> torch.Tensor:
    return _nested([torch.from_numpy(column[row].astype(dtype)) for row in range(len(column))])


def _nested(runs: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(runs, layout=torch.jagged)
