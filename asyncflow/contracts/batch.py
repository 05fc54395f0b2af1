"""Rows as stages see them: jagged columns from the queue, and the padded form that a model takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from transfer_queue.columns import Jagged

if TYPE_CHECKING:
    import torch


SEQUENCES = ("prompt_ids", "response_ids")  # the columns that hold token ids


@dataclass
class StageBatch:
    """What `compute` gets: R rows, rows of a group adjacent and in sample order.

    `columns[name]`: scalar → ndarray [R]; per_token → Jagged of R runs; blob → list[bytes] of R. Arrays may be read-only.
    """

    gids: np.ndarray  # [R] int64
    rows: np.ndarray  # [R] int32, sample index in the group
    oldest_versions: np.ndarray  # [R] int64
    newest_versions: np.ndarray  # [R] int64
    columns: dict[str, np.ndarray | Jagged | list[bytes]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.gids)

    @property
    def tokens(self) -> int:
        """Of prompts and responses, as far as the stage reads them: 0 for one that reads neither."""
        return sum(len(column.values) for name in SEQUENCES if isinstance(column := self.columns.get(name), Jagged))

    def jagged(self, name: str) -> Jagged:
        column = self.columns[name]
        if not isinstance(column, Jagged):
            raise TypeError(f"column {name!r} is not per_token: it holds {type(column).__name__}; declare it per_token in the topic")
        return column

    def scalar(self, name: str) -> np.ndarray:
        column = self.columns[name]
        if not isinstance(column, np.ndarray):
            raise TypeError(f"column {name!r} is not scalar: it holds {type(column).__name__}; declare it scalar in the topic")
        return column


@dataclass
class RowBatch:
    """A padded micro-batch. R rows; W = configured full width; T = configured response width; all right-padded.

    Row r: `input_ids[r] = prompt ++ response ++ pad`. Response token j of row r is predicted from position prompt_lens[r] + j - 1.
    Rows beyond `real_rows` are padding rows with an empty response: they keep the shape constant and add nothing.
    """

    input_ids: torch.Tensor  # [R, W] int64
    attention_mask: torch.Tensor  # [R, W] bool
    prompt_lens: torch.Tensor  # [R] int64
    response_mask: torch.Tensor  # [R, T] bool
    columns: dict[str, torch.Tensor]  # per_token → [R, T] (0 at padding: use the mask), scalar → [R]
    temperature: float = 1.0
    real_rows: int = 0
