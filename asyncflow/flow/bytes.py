"""How many bytes one group may take at worst: what a permit reserves at admission."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from asyncflow.config.stages import SOURCE_COLUMNS
from transfer_queue.messages import Column

if TYPE_CHECKING:
    from asyncflow.config.root import RunConfig

HANDED_BACK = "(handed back)"  # what interrupted rows take until their group is complete, beside the columns
TOKEN_BYTES = 12  # of an interrupted row's token: id, log-probability, version (`workers.unfinished`)
ROW_BYTES = 128  # of such a row, besides
EXTRA_DTYPES = {"bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}  # bytes an element of the types that numpy does not have


def element_bytes(dtype: str) -> int:
    """Bytes of one element. Raises TypeError for a type that nobody knows."""
    return EXTRA_DTYPES.get(dtype) or np.dtype(dtype).itemsize


def column_bytes(config: RunConfig) -> dict[str, int]:
    """Worst case of one group in bytes, by column: shared columns once, each other column of every sample at full length; and what is handed back of
    it, where that happens. What one attempt hands back may lie beside what the one before did: the columns of rows that are not there make up for
    it."""
    shared = {column.name: _row_bytes(config, column) for column in SOURCE_COLUMNS}
    rows = config.rollout.samples_per_prompt
    written = {column.name: rows * _row_bytes(config, column) for name, stage in config.stages.items() for column in stage.columns(name)}
    interrupted = {HANDED_BACK: rows * (TOKEN_BYTES * config.rollout.response_width + ROW_BYTES)} if config.rollout.pause_mode == "abort" else {}
    return shared | written | interrupted


def group_bytes(config: RunConfig) -> int:
    """Worst case of one group in bytes."""
    return sum(column_bytes(config).values())


def prompt_bytes(config: RunConfig) -> int:
    """Worst case in bytes of a prompt that waits for admission: a group that has no rows yet."""
    return sum(_row_bytes(config, column) for column in SOURCE_COLUMNS)


def _row_bytes(config: RunConfig, column: Column) -> int:
    """One row's values. A per-token column may cover prompt and response; a blob is bounded by `task.item_bytes`."""
    size = element_bytes(column.dtype)
    if column.kind == "scalar":
        return size
    if column.kind == "blob":
        return config.task.item_bytes
    return size * (config.rollout.prompt_width + config.rollout.response_width)
