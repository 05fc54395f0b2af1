"""What a batch says of the columns that were put by it."""

from __future__ import annotations

from typing import Any

from transfer_queue.compat.tensors import TensorDict, rows_of


def described(fields: TensorDict) -> dict[str, dict[str, Any]]:
    """Column → dtype and shape of a row, or of each; a row without axes counts as a run of one. Raises ValueError for another number of rows."""
    return {name: _described(name, value, rows_of(fields)) for name, value in fields.items()}


def _described(name: str, value: Any, rows: int) -> dict[str, Any]:
    tensor = hasattr(value, "untyped_storage")
    nested = tensor and bool(value.is_nested)
    parts = value.unbind() if nested else value
    if len(parts) != rows:
        raise ValueError(f"column {name!r} has {len(parts)} rows in a batch of {rows}: they would land on other rows; give each row one")
    found: dict[str, Any] = {"dtype": value.dtype if tensor else None, "shape": None, "is_nested": nested, "is_non_tensor": not tensor}
    if nested:
        found |= {"shape": parts[0].shape, "per_sample_shapes": [tuple(part.shape) for part in parts]}
    elif tensor:
        found["shape"] = value.shape[1:] if value.dim() > 1 else (1,)
    return found
