"""Between torch and numpy without a conversion: a tensor's bits as an array, and a tensor over an array's memory.

torch is imported by the calls that make tensors; that something is a tensor is seen without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np

from shared_arena import claimed
from transfer_queue.columns import Jagged
from transfer_queue.dtypes import BITS, REFUSED, storage

if TYPE_CHECKING:
    import torch


def is_tensor(column: Any) -> bool:
    return hasattr(column, "untyped_storage")


def is_nested(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_nested)


def bits_of(name: str, tensor: torch.Tensor) -> tuple[np.ndarray, str]:
    """The tensor's bits, contiguous and on the host, in its shape, and the name of its dtype. No copy of a contiguous tensor on the host."""
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype in REFUSED:
        raise TypeError(f"column {name!r} is a tensor of {tensor.dtype}: {REFUSED[dtype]}")
    _refuse_strange(name, tensor)
    try:
        width = storage(dtype)
    except ValueError:
        raise TypeError(f"column {name!r} is a tensor of {tensor.dtype}, which this release does not know; pass tensor.view(torch.uint8)") from None
    tensor = tensor.detach().resolve_conj().resolve_neg()  # these two are views that say "negate me": the bits under them are others
    if dtype in BITS:
        tensor = tensor.view(getattr(torch, width.name))  # before anything else: many operations are not there for these types
    return tensor.cpu().contiguous().numpy(), dtype


def jagged_of_nested(name: str, tensor: Any) -> Jagged:
    """A nested tensor [R, j, *shape] of layout torch.jagged as runs, without a copy when it is contiguous."""
    import torch

    if getattr(tensor, "_ragged_idx", None) != 1:
        raise TypeError(
            f"column {name!r} is nested in layout {tensor.layout}, or its second axis is not the ragged one: runs are [rows, ragged, …]; build it "
            "with torch.nested.nested_tensor(runs, layout=torch.jagged)"
        )
    if tensor._lengths is not None or int(tensor._offsets[0]) != 0:  # narrowed: the values hold more than the runs
        tensor = torch.nested.nested_tensor(list(tensor.detach().unbind()), layout=torch.jagged)
    return from_torch(tensor._values, tensor._offsets)  # what values() and offsets() give, which cost 0.1 ms each


def from_torch(values: torch.Tensor, offsets: torch.Tensor) -> Jagged:
    """R runs from tensors, values [N, *shape] of any dtype and offsets [R + 1]. Over the same memory, unless strided or on a device."""
    bits, dtype = bits_of("values", values)
    return Jagged(bits, bits_of("offsets", offsets)[0], dtype)


@overload
def to_torch(values: np.ndarray, dtype: str | None = None) -> torch.Tensor: ...


@overload
def to_torch(values: Jagged, dtype: str | None = None) -> tuple[torch.Tensor, torch.Tensor]: ...


def to_torch(values: np.ndarray | Jagged, dtype: str | None = None) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """A tensor of the schema dtype over the memory of `values`; of a Jagged: values [N, *shape] and offsets [R + 1] int64. `dtype` None: as it is.

    No copy unless the array is misaligned, reversed or byte-swapped, also when it is read-only: torch has no read-only tensors, so an operation in
    place on such a tensor writes where nobody may, and over shared memory ends the process with SIGSEGV. Clone first, or read with `writable=True`.
    Raises TypeError for values that are not the bits of `dtype`, ValueError for masked ones.
    """
    if isinstance(values, Jagged):
        return to_torch(values.values, dtype or values.dtype), to_torch(values.offsets)
    dtype = dtype or values.dtype.name
    wanted = storage(dtype)
    if values.dtype.newbyteorder("=") != wanted:
        raise TypeError(f"{dtype} is stored as {wanted}, got {values.dtype}: the values were converted on the way; pass what `read` returned")
    if isinstance(values, np.ma.MaskedArray):
        if values.mask.any():
            raise ValueError("the column is masked: rows lack it, and torch has no missing values; pass .filled(value) or the rows that have it")
        values = values.data
    import torch

    tensor = torch.from_numpy(_usable(values))
    return tensor.view(getattr(torch, dtype)) if dtype in BITS else tensor


def to_nested(runs: Jagged, dtype: str | None = None) -> torch.Tensor:
    """A nested tensor [R, j, *shape] of layout torch.jagged over the same memory."""
    import torch

    return torch.nested.nested_tensor_from_jagged(*to_torch(runs, dtype))


def _usable(values: np.ndarray) -> np.ndarray:
    """`values` or a copy, such that torch takes it as it is."""
    item = values.itemsize
    if not (values.dtype.isnative and values.flags.aligned and all(step >= 0 and step % item == 0 for step in values.strides)):
        return np.array(values, dtype=values.dtype.newbyteorder("="), order="C", subok=False)
    return np.asarray(claimed(values))


def _refuse_strange(name: str, tensor: torch.Tensor) -> None:
    import torch

    kind = type(tensor)
    if kind not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise TypeError(
            f"column {name!r} is a {kind.__module__}.{kind.__qualname__}: what a subclass of tensor adds (placement, a scale) does not travel; pass "
            "a plain tensor, e.g. DTensor.full_tensor() or tensor.as_subclass(torch.Tensor)"
        )
    if tensor.layout is not torch.strided:
        raise TypeError(f"column {name!r} has layout {tensor.layout}, which does not travel; pass tensor.to_dense(), or its parts as columns")
    if tensor.device.type == "meta":
        raise TypeError(f"column {name!r} is on device 'meta': it has a shape and no values; pass the tensor that was computed")
