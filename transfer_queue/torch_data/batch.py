"""What a loader yields: the columns of some rows as tensors, and which rows they are.

Tensors look at the queue's own memory where that is mapped. torch has no read-only tensors: an operation in place on such a one ends the process with
SIGSEGV (see `codec.to_torch`); clone it first, or ask for `writable` batches. A batch that came from a worker process is memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch

from transfer_queue import codec
from transfer_queue import messages as m
from transfer_queue.columns import Jagged
from transfer_queue.torch_data.receipts import Receipt

Column: TypeAlias = "torch.Tensor | Runs | Masked | list[Any]"
"""scalar → Tensor [R, *shape], of an optional column Masked; per_token → Runs; text → list[str | None]; blob → list[bytes]; object → list."""


@dataclass(frozen=True, eq=False)
class Runs:
    """R runs of different length side by side: run r is `values[offsets[r]:offsets[r + 1]]`."""

    values: torch.Tensor  # [N, *shape]
    offsets: torch.Tensor  # [R + 1] int64, ascending from 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> torch.Tensor:
        """Run `row` as a view."""
        if not -len(self) <= row < len(self):
            raise IndexError(row)
        row %= len(self)
        start, stop = self.offsets[row : row + 2].tolist()
        return self.values[start:stop]

    @property
    def lengths(self) -> torch.Tensor:
        """[R] int64."""
        return self.offsets.diff()

    def nested(self) -> torch.Tensor:
        """[R, j, *shape] of layout torch.jagged, over the same memory."""
        return torch.nested.nested_tensor_from_jagged(self.values, self.offsets)

    def padded(self, value: float | int | bool) -> torch.Tensor:
        """[R, longest run, *shape], runs at the left, `value` in the rest (one copy)."""
        lengths = self.lengths
        width = int(lengths.max()) if len(self) else 0
        out = self.values.new_full((len(self), width, *self.values.shape[1:]), value)
        out[torch.arange(width, device=lengths.device) < lengths[:, None]] = self.values
        return out


@dataclass(frozen=True, eq=False)
class Masked:
    """A scalar column that rows may lack. Missing is never zero: where `present` is False, `values` says nothing."""

    values: torch.Tensor  # [R, *shape]
    present: torch.Tensor  # [R] bool

    def __len__(self) -> int:
        return len(self.present)


@dataclass(frozen=True, eq=False)
class Batch:
    """R rows. Rows of a group are adjacent, in row order."""

    columns: dict[str, Column]  # the consumer's inputs
    receipt: Receipt

    def __len__(self) -> int:
        return len(self.receipt.gids)

    def __getitem__(self, name: str) -> Any:
        """A column."""
        return self.columns[name]

    @property
    def gids(self) -> np.ndarray:
        """[R] int64."""
        return self.receipt.gids

    @property
    def rows(self) -> np.ndarray:
        """[R] int64, each row's place in its group."""
        return self.receipt.rows

    @property
    def oldest_versions(self) -> np.ndarray:
        """[R] int64, version of each row's oldest token."""
        return self.receipt.oldest

    @property
    def newest_versions(self) -> np.ndarray:
        return self.receipt.newest

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """For DataLoader's `pin_memory`."""
        return self._each(torch.Tensor.pin_memory)

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        return replace(self, columns={name: _changed(column, change) for name, column in self.columns.items()})


def _changed(column: Column, change: Callable[[torch.Tensor], torch.Tensor]) -> Column:
    if isinstance(column, torch.Tensor):
        return change(column)
    if isinstance(column, Runs):
        return Runs(change(column.values), change(column.offsets))
    if isinstance(column, Masked):
        return Masked(change(column.values), change(column.present))
    return column


def tensors(column: m.Column, values: codec.Column) -> Column:
    """A `Column` over the memory of what `QueueClient.read` returned for it."""
    if isinstance(values, Jagged):
        return Runs(*codec.to_torch(values, column.dtype))
    if not isinstance(values, np.ndarray):
        return values
    if not column.optional:
        return codec.to_torch(values, column.dtype)
    absent = np.ma.getmaskarray(values).reshape(len(values), -1).any(axis=1)
    return Masked(codec.to_torch(np.asarray(np.ma.getdata(values)), column.dtype), torch.from_numpy(~absent))
