"""How long each response is, by (gid, sample): an emulated run and its simulation are compared, so they must give a row the same length."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from asyncflow.config.errors import ConfigError
from asyncflow.sizing.costs import CostTable
from asyncflow.sizing.draw import draw

DRAWN = 1 << 16  # lengths drawn for a table without a stored trace; also the size of the stored ones


class ResponseLengths:
    """A trace of lengths (tokens, each in [1, cap]) that repeats after its end."""

    def __init__(self, trace: np.ndarray, group_rows: int) -> None:
        self.trace = trace  # [lengths] int64
        self.group_rows = group_rows
        self._values: list[int] = trace.tolist()

    def length_of(self, gid: int, sample: int) -> int:
        """Tokens of response `sample` of group `gid`, whoever generates it and however often."""
        return self._values[(gid * self.group_rows + sample) % len(self._values)]

    def group(self, gid: int) -> list[int]:
        """All lengths of one group, in sample order."""
        return [self.length_of(gid, sample) for sample in range(self.group_rows)]


def response_lengths(costs: CostTable) -> ResponseLengths:
    """The lengths of a table: its stored trace, else drawn from its law and seed. Raises ConfigError for a trace that is missing or no trace."""
    law = costs.lengths
    trace = _stored(law.trace) if law.trace is not None else draw(law, DRAWN)
    if trace.min() < 1 or trace.max() > law.cap:
        raise ConfigError(
            f"lengths.trace = {law.trace}: its lengths are in [{trace.min()}, {trace.max()}], outside [1, lengths.cap = {law.cap}]: slots and cache "
            "would not hold them. Raise the cap or store another trace"
        )
    return ResponseLengths(trace, costs.group_rows)


@functools.cache
def _stored(path: str) -> np.ndarray:
    if not Path(path).is_file():
        raise ConfigError(f"lengths.trace = {path}: there is no such file, and lengths would have to be guessed. Give a .npy file beside the table")
    try:
        trace = np.load(path, allow_pickle=False)
    except ValueError as error:
        raise ConfigError(f"lengths.trace = {path}: it cannot be read as .npy ({error}). Store it with numpy.save") from None
    if trace.ndim != 1 or not len(trace) or trace.dtype.kind not in "iu":
        raise ConfigError(f"lengths.trace = {path}: it holds {trace.dtype} {trace.shape}, a trace is one row of whole numbers. Store such an array")
    return trace.astype(np.int64)
