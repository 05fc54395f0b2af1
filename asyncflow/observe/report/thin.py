"""Fewer points for the page: neighbouring steps become one point, by their mean or, where the largest is the news, by their largest."""

from __future__ import annotations

import numpy as np

POINTS_BOUND = 1200  # more than a chart has pixels


def stride(count: int) -> int:
    """How many values one point stands for."""
    return -(-count // POINTS_BOUND) if count else 1


def thinned(values: np.ndarray, how: str) -> list[float | None]:
    """float64 [n], NaN for "not measured" → at most POINTS_BOUND values; None where all values of a point are NaN. `how`: mean | max | last."""
    step = stride(len(values))
    if step > 1:
        padded = np.concatenate([values, np.full(-len(values) % step, np.nan)]).reshape(-1, step)
        values = _last(padded) if how == "last" else _reduce(padded, np.fmax.reduce if how == "max" else _mean)
    return [None if np.isnan(value) else short(value) for value in values]


def short(value: float) -> float:
    """Seven digits: enough for any pixel, and it bounds the size of the page."""
    return float(f"{value:.7g}")


def _reduce(rows: np.ndarray, how: object) -> np.ndarray:
    assert callable(how)
    return np.asarray(how(rows, axis=1), dtype=np.float64)


def _mean(rows: np.ndarray, axis: int) -> np.ndarray:
    """Over what was measured, without numpy's warning where nothing was."""
    known = ~np.isnan(rows)
    counts = known.sum(axis=axis)
    sums = np.where(known, rows, 0.0).sum(axis=axis)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _last(rows: np.ndarray) -> np.ndarray:
    """The last measured value of each row."""
    known = ~np.isnan(rows)
    place = rows.shape[1] - 1 - np.argmax(known[:, ::-1], axis=1)
    return rows[np.arange(len(rows)), place]
