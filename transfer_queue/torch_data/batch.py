"""What a loader yields: the columns of some rows as tensors, and which rows they are.

Tensors look at the queue's own memory where that is mapped. torch has no read-only tensors: an operation in place on such a one ends the process with
SIGSEGV (see `codec.to_torch`); clone it first, or ask for `writable` batches. A batch that came from a worker process is memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias

import numpy as np
import torch

from transfer_queue import codec
from transfer_queue import messages as m
from transfer_queue.columns import Jagged
from transfer_queue.torch_data.receipts import Receipt

Column: TypeAlias = "torch.Tensor | JaggedTensor | Masked | list[Any]"
"""scalar → Tensor [R, *shape]; per_token → JaggedTensor; of an optional column Masked around either.
text → list[str | None]; blob → list[bytes | None]; object → list; None where a row lacks an optional one."""

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # torch copies these everywhere, and not every other dtype of their width


class _Movable:
    """What consists of tensors: it moves as a whole, in DataLoader's `pin_memory`, too, also where `collate_fn` returns it by itself."""

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        raise NotImplementedError

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        return self._each(torch.Tensor.pin_memory)


@dataclass(frozen=True, eq=False)
class JaggedTensor(_Movable):
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
        bits = _BITS.get(self.values.itemsize, self.values.dtype)
        out.view(bits)[torch.arange(width, device=lengths.device) < lengths[:, None]] = self.values.view(bits)
        return out

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> JaggedTensor:
        return JaggedTensor(change(self.values), change(self.offsets))


@dataclass(frozen=True, eq=False)
class Masked(_Movable):
    """A column that rows may lack. Missing is never zero: where `present` is False, `values` says nothing."""

    values: torch.Tensor | JaggedTensor  # [R, *shape]; R runs, of a row that lacks it an empty one
    present: torch.Tensor  # [R] bool

    def __len__(self) -> int:
        return len(self.present)

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Masked:
        return Masked(_changed(self.values, change), change(self.present))


@dataclass(frozen=True, eq=False)
class Batch(_Movable):
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

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        return replace(self, columns={name: _changed(column, change) for name, column in self.columns.items()})


def _changed(column: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(column, torch.Tensor):
        return change(column)
    return column._each(change) if isinstance(column, _Movable) else column


def tensors(column: m.Column, values: codec.Column, present: np.ndarray) -> Column:
    """A `Column` over the memory of what `QueueClient.read` returned for it. `present`: [R] bool, which rows have it."""
    if isinstance(values, list):
        return values if present.all() else [value if there else None for value, there in zip(values, present.tolist(), strict=True)]
    if isinstance(values, Jagged):
        found: torch.Tensor | JaggedTensor = JaggedTensor(*codec.to_torch(values, column.dtype))
    else:
        found = codec.to_torch(np.ma.getdata(values), column.dtype)
    return Masked(found, torch.from_numpy(present.copy())) if column.optional else found
