"""Rows of keyed partitions and columns of a TensorDict. Rows are what is stored, so what comes back does not depend on how they were put:

    rows without axes                       a dense tensor [B]
    rows with axes                          a nested tensor: jagged where torch can say it so, else strided, else a NonTensorStack
    a row that is no tensor among them      a NonTensorStack of the values

Raises RuntimeError at import where tensordict is missing: an ImportError would be taken for "no queue is installed".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

try:
    import torch
    from tensordict import NonTensorData, NonTensorStack, TensorDict
except ImportError as error:
    raise RuntimeError(f"transfer_queue's TensorDict interface needs torch and tensordict: {error}. pip install tensordict") from error

from transfer_queue.codec import to_torch
from transfer_queue.codec.text import pack_blobs, pack_text
from transfer_queue.columns import Jagged
from transfer_queue.compat.objects import pack_values, unpacked_value
from transfer_queue.keyed import Found, Part
from transfer_queue.keyed.packing import Typed, typed, typed_of

Parser = Callable[[dict[str, Any]], dict[str, Any]]


def rows_of(fields: TensorDict) -> int:
    """Raises ValueError for one without a batch dimension."""
    if not isinstance(fields, TensorDict):
        raise ValueError(f"fields is a {type(fields).__name__}: pass a TensorDict with a row a key; nothing was written")
    if not fields.batch_size:
        raise ValueError("fields has batch_size=[]: which rows are whose, nobody can say; nothing was written. Give it one, e.g. [len(keys)]")
    return fields.batch_size[0]


def packed_columns(fields: TensorDict, parser: Parser | None = None) -> dict[str, Typed]:
    """Rows of `fields`, packed for `KeyedClient.put`; dense and jagged tensors on the host without a copy. `parser`: see `parsed`.

    Raises TypeError or ValueError naming the column for what cannot be stored.
    """
    rows = rows_of(fields)
    columns = dict(fields.items())
    if parser is not None:
        columns = parsed({name: _batched(name, value, rows) for name, value in columns.items()}, parser)
    return {name: _packed(name, value, rows) for name, value in columns.items()}


def parsed(columns: dict[str, Any], parser: Parser) -> dict[str, Any]:
    """What `parser` makes of column → tensor or list. Raises TypeError or ValueError unless it has the same columns, with as many rows."""
    before = {name: len(values) for name, values in columns.items()}
    after = parser(columns)
    if not isinstance(after, dict):
        raise TypeError(f"data_parser returned a {type(after).__name__}: it must return the dict that it was given; nothing was written")
    found = {name: len(values) for name, values in after.items()}
    if found != before:
        raise ValueError(f"data_parser made columns of {found} rows out of {before}: columns and rows must stay; nothing was written")
    return after


def table(found: Found) -> TensorDict:
    """Columns sorted by name, rows in the order of `found`."""
    columns = {name: _column(found.parts[name], len(found)) for name in sorted(found.parts)}
    return TensorDict(columns, batch_size=[len(found)])


def joined_tables(tables: Sequence[tuple[Sequence[int], TensorDict]], rows: int) -> TensorDict:
    """One of several that have the same columns; each with the places of its rows among `rows`."""
    names = list(tables[0][1].keys()) if tables else []
    columns = {}
    for name in names:
        values: list[Any] = [None] * rows
        for places, part in tables:
            for place, value in zip(places, _batched_rows(part.get(name)), strict=True):
                values[place] = value
        columns[name] = _of_rows(values)
    return TensorDict(columns, batch_size=[rows])


def selected(fields: TensorDict, start: int, stop: int) -> TensorDict:
    """Rows start … stop. torch slices no nested tensor."""
    columns = {}
    for name, value in fields.items():
        nested = isinstance(value, torch.Tensor) and value.is_nested
        columns[name] = torch.nested.as_nested_tensor(list(value.unbind()[start:stop]), layout=value.layout) if nested else value[start:stop]
    return TensorDict(columns, batch_size=[stop - start])


# ------------------------------------------------------------ rows of what is put


def _packed(name: str, value: Any, rows: int) -> Typed:
    if not isinstance(value, torch.Tensor):
        return _packed_values(name, _batched(name, value, rows))
    if getattr(value, "_ragged_idx", None) == 1 and 0 not in value._values.shape[1:]:  # type: ignore[attr-defined]
        return typed(name, value)
    if value.is_nested:
        return _packed_tensors(name, list(value.unbind()))
    if value.dim() > 2 and (len(value) == 1 or 0 in value.shape):
        # one row alone: its later axes differ from those of the next, and each shape would be a type of its own
        return typed_of(pack_values(name, list(value.unbind())))
    return typed(name, value)


def _batched(name: str, value: Any, rows: int) -> Any:
    """A dense tensor as it is, anything else as a list of its rows."""
    if isinstance(value, torch.Tensor):
        return list(value.unbind()) if value.is_nested else value
    if isinstance(value, NonTensorStack):
        return value.tolist()
    if isinstance(value, NonTensorData):
        return [value.data] * rows
    if isinstance(value, list):
        return value
    raise TypeError(f"column {name!r} is a {type(value).__module__}.{type(value).__qualname__}: pass a tensor, a nested tensor or a NonTensorStack")


def _packed_values(name: str, values: Any) -> Typed:
    if isinstance(values, torch.Tensor):  # what a parser put in place of a list
        return _packed(name, values, len(values))
    if values and all(isinstance(value, torch.Tensor) for value in values):
        return _packed_tensors(name, values)
    kinds = {type(value) for value in values}
    if kinds == {str}:
        return typed_of(pack_text(name, values))
    return typed_of(pack_blobs(name, values) if kinds == {bytes} else pack_values(name, values))


def _packed_tensors(name: str, tensors: list[torch.Tensor]) -> Typed:
    """A tensor a row: runs where they are alike but for their first axis, else each as an object with its shape."""
    first = tensors[0]
    if any(each.is_nested or each.dtype != first.dtype or each.shape[1:] != first.shape[1:] or each.dim() != first.dim() for each in tensors):
        return typed_of(pack_values(name, tensors))
    if first.dim() == 0:
        return typed(name, torch.stack(tensors))
    if 0 in first.shape[1:]:
        return typed_of(pack_values(name, tensors))
    offsets = np.zeros(len(tensors) + 1, dtype=np.int64)
    np.cumsum([len(each) for each in tensors], out=offsets[1:])
    packed = typed(name, torch.cat(tensors)[None]).packed  # one run of them all
    width = 1
    for axis in packed.shape:
        width *= axis
    return typed_of(type(packed)(packed.values, offsets * width, packed.kind, packed.dtype, packed.shape))


# ------------------------------------------------------------ columns of what is read


def _column(parts: Sequence[Part], rows: int) -> Any:
    if len(parts) == 1:
        kind, values = parts[0].type, parts[0].values
        if isinstance(values, Jagged):
            return _jagged(values)
        if isinstance(values, np.ndarray) and not kind.shape:
            return to_torch(values, kind.dtype)
        if kind.kind in ("text", "blob"):
            return NonTensorStack(*values)
    found: list[Any] = [None] * rows
    for part in parts:
        for row, value in zip(part.rows.tolist(), _values(part), strict=True):
            found[row] = value
    return _of_rows(found)


def _jagged(runs: Jagged) -> torch.Tensor:
    """Over the same memory. With the shortest and the longest length, which padding goes by."""
    lengths = runs.lengths
    values, offsets = to_torch(runs)
    return torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=int(lengths.min()), max_seqlen=int(lengths.max()))


def _values(part: Part) -> list[Any]:
    """Row by row."""
    column = part.values
    if isinstance(column, Jagged):
        whole = to_torch(column.values, part.type.dtype)
        return [whole[start:stop] for start, stop in itertools.pairwise(column.offsets.tolist())]
    if isinstance(column, np.ndarray):
        return list(to_torch(column, part.type.dtype).unbind())
    return [unpacked_value(value) for value in column] if part.type.kind == "object" else column


def _batched_rows(column: Any) -> list[Any]:
    return list(column.unbind()) if isinstance(column, torch.Tensor) else column.tolist()


def _of_rows(values: list[Any]) -> Any:
    if not all(isinstance(value, torch.Tensor) for value in values):
        return NonTensorStack(*values)
    if all(value.dim() == 0 for value in values):
        return torch.stack(values)
    for layout in (torch.jagged, torch.strided):
        try:
            return torch.nested.as_nested_tensor(values, layout=layout)
        except (RuntimeError, TypeError):  # torch's way to say that this layout cannot hold them
            continue
    return NonTensorStack(*values)


def single(fields: Mapping[str, Any]) -> TensorDict:
    """One row of values, each without a batch axis. Raises ValueError for nested tensors."""
    columns: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, torch.Tensor):
            if value.is_nested:
                raise ValueError(f"column {name!r} of one key is a nested tensor: it would be many rows; use kv_batch_put with a key a row")
            columns[name] = value.unsqueeze(0)
        else:
            columns[name] = NonTensorStack(value)
    return TensorDict(columns, batch_size=[1])


__all__ = ["Parser", "TensorDict", "joined_tables", "packed_columns", "parsed", "rows_of", "selected", "single", "table"]
