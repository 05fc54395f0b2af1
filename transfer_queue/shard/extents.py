"""Where the columns of one write lie in its extent. Pure: the shard lays out what it was asked for, and a writer that maps the arena finds it.

Column after column, each beginning at a multiple of ALIGN; inside a column group after group without padding: rows of one put come back dense without
a copy, in any dtype.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

ALIGN = 64  # bytes: a cache line, and more than any dtype asks for


class ExtentPlan(msgspec.Struct, frozen=True):
    bases: list[int]  # where each column begins, bytes from the begin of the extent
    nbytes: int  # where the last column ends


def plan(cuts: Sequence[Sequence[int]] | np.ndarray) -> ExtentPlan:
    """The layout of columns with the marks `cuts[c]` = [0, …, bytes of column c]."""
    bases, end = [], 0
    for marks in cuts:
        bases.append(aligned(end))
        end = bases[-1] + int(marks[-1])
    return ExtentPlan(bases, end)


def aligned(nbytes: int) -> int:
    """The next multiple of ALIGN."""
    return -(-nbytes // ALIGN) * ALIGN
