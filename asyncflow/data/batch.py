"""From jagged columns to the padded micro-batch that a model takes, in one fixed shape, so that the bits of a row do not depend on its company."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from asyncflow.contracts.batch import RowBatch, StageBatch
from transfer_queue.columns import Jagged

if TYPE_CHECKING:
    from asyncflow.config import RunConfig

PROMPT, RESPONSE = "prompt_ids", "response_ids"


@dataclass(frozen=True)
class BatchShape:
    """The one shape of a micro-batch: `rows` × (prompt_width + response_width) tokens."""

    rows: int
    prompt_width: int  # longest prompt in tokens
    response_width: int  # longest response in tokens: T
    pad_token_id: int = 0
    temperature: float = 1.0  # of the distribution that responses were sampled from

    @property
    def width(self) -> int:
        return self.prompt_width + self.response_width


def train_shape(config: RunConfig) -> BatchShape:
    """Shape of the trainer's micro-batches: `micro_batch_groups` whole groups."""
    return _shape(config, config.algorithm.micro_batch_groups)


def forward_shape(config: RunConfig) -> BatchShape:
    """Shape of a forward pass: one whole group."""
    return _shape(config, 1)


def _shape(config: RunConfig, groups: int) -> BatchShape:
    rollout = config.rollout
    rows = groups * rollout.samples_per_prompt
    return BatchShape(rows, rollout.prompt_width, rollout.response_width, temperature=rollout.temperature)


def pad_rows(batch: StageBatch, shape: BatchShape) -> RowBatch:
    """Right-pad every column of `batch` (blobs stay behind); rows beyond len(batch) are padding rows.

    `batch` holds at least prompt_ids and response_ids (per token, int32). Every other per-token column must have one value a response token and
    becomes [R, T]; every scalar column becomes [R]. Floats come as float32, integers as int64.
    Raises ValueError when there are more rows than `shape.rows`, or when a run is longer than its width or not as long as the response.
    """
    if len(batch) > shape.rows:
        raise ValueError(f"micro-batch of {len(batch)} rows exceeds the fixed {shape.rows} rows and is refused; raise algorithm.micro_batch_groups")
    prompts, responses = batch.jagged(PROMPT), batch.jagged(RESPONSE)
    _check_widths(batch, prompts, "rollout.prompt_width", shape.prompt_width)
    _check_widths(batch, responses, "rollout.response_width", shape.response_width)
    lengths = prompts.lengths + responses.lengths
    ids = np.full((shape.rows, shape.width), shape.pad_token_id, dtype=np.int64)
    rows, places = _cells(prompts.lengths)
    ids[rows, places] = prompts.values
    rows, places = _cells(responses.lengths)
    ids[rows, places + prompts.lengths[rows]] = responses.values
    prompt_lens = np.ones(shape.rows, dtype=np.int64)  # 1 at padding rows: the place before the first response token must exist
    prompt_lens[: len(batch)] = prompts.lengths
    return RowBatch(
        input_ids=torch.from_numpy(ids),
        attention_mask=torch.from_numpy(_prefix_mask(lengths, shape.rows, shape.width)),
        prompt_lens=torch.from_numpy(prompt_lens),
        response_mask=torch.from_numpy(_prefix_mask(responses.lengths, shape.rows, shape.response_width)),
        columns=_pad_columns(batch, responses, shape),
        temperature=shape.temperature,
        real_rows=len(batch),
    )


def unpad(values: torch.Tensor, lengths: np.ndarray) -> Jagged:
    """The first `lengths[r]` values of each row r < len(lengths) of `values` [R, T] float32, as runs: the inverse of `pad_rows` for one column."""
    rows, places = _cells(lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Jagged(values.detach().cpu().numpy()[rows, places], offsets)


def _pad_columns(batch: StageBatch, responses: Jagged, shape: BatchShape) -> dict[str, torch.Tensor]:
    padded: dict[str, torch.Tensor] = {}
    for name, column in batch.columns.items():
        if name in (PROMPT, RESPONSE) or isinstance(column, list):
            continue
        if isinstance(column, Jagged):
            if not np.array_equal(column.lengths, responses.lengths):
                row = int(np.flatnonzero(column.lengths != responses.lengths)[0])
                raise ValueError(
                    f"column {name!r} of group {batch.gids[row]} row {batch.rows[row]} has {column.lengths[row]} values for "
                    f"{responses.lengths[row]} response tokens; a missing value is never read as 0, so the batch is refused; write one a token"
                )
            rows, places = _cells(column.lengths)
            block = np.zeros((shape.rows, shape.response_width), dtype=_dtype(column.values))
            block[rows, places] = column.values
        else:
            block = np.zeros(shape.rows, dtype=_dtype(column))
            block[: len(batch)] = column
        padded[name] = torch.from_numpy(block)
    return padded


def _dtype(values: np.ndarray) -> type[np.generic]:
    return np.float32 if values.dtype.kind == "f" else np.int64


def _cells(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(row, place in the row) of every element of runs of these lengths, in order."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    starts = np.cumsum(lengths) - lengths
    return rows, np.arange(len(rows)) - starts[rows]


def _prefix_mask(lengths: np.ndarray, rows: int, width: int) -> np.ndarray:
    """[rows, width] bool: True at the first lengths[r] places of row r; False in rows beyond."""
    mask = np.zeros((rows, width), dtype=bool)
    mask[: len(lengths)] = np.arange(width) < lengths[:, None]
    return mask


def _check_widths(batch: StageBatch, runs: Jagged, setting: str, width: int) -> None:
    longest = int(runs.lengths.max(initial=0))
    if longest > width:
        row = int(runs.lengths.argmax())
        where = f"group {batch.gids[row]} row {batch.rows[row]}"
        raise ValueError(f"{where} has {longest} tokens where {setting} = {width}; the batch is refused; raise {setting}")
