"""From sums of calls to a fixed cost and a cost per unit: least squares, and what to do where the measurements do not tell the two apart."""

from __future__ import annotations

import msgspec

from asyncflow.observe.records import CostSums

ONE_SIZE = 1e-6  # relative variance of the sizes below which all calls count as one size


class Line(msgspec.Struct, frozen=True):
    """A call of size x takes `fixed_s + per_unit_s · x` seconds; both >= 0."""

    fixed_s: float
    per_unit_s: float
    note: str | None = None  # what the measurements could not tell, and what was assumed instead


def fit(sums: CostSums, *, flat: bool = False) -> Line | None:
    """None without a call that took time. Where size explains nothing: all cost is fixed (`flat`) or all is per unit (else, so `per_unit_s` > 0)."""
    if sums.calls < 1 or sums.seconds <= 0 or sums.size <= 0:
        return None
    mean, variance = sums.size / sums.calls, sums.size_squared / sums.calls - (sums.size / sums.calls) ** 2
    if variance <= ONE_SIZE * mean * mean:
        return _either(sums, flat, f"every call had the size {mean:.4g}")
    per_unit = (sums.size_seconds / sums.calls - mean * sums.seconds / sums.calls) / variance
    fixed = sums.seconds / sums.calls - per_unit * mean
    if per_unit <= 0:
        return _either(sums, flat, "larger calls were not slower")
    if fixed < 0:
        return Line(0.0, sums.seconds / sums.size, "the fitted fixed cost was below 0: all of it is taken as per unit")
    return Line(fixed, per_unit)


def _either(sums: CostSums, flat: bool, why: str) -> Line:
    """The total stays right in both."""
    if flat:
        return Line(sums.seconds / sums.calls, 0.0, f"{why}: all of it is taken as fixed")
    return Line(0.0, sums.seconds / sums.size, f"{why}: all of it is taken as per unit")
