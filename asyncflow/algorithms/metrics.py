"""From a loss's sums to a step's metrics. No torch: whoever records a step need not compute one."""

from __future__ import annotations


def averages(sums: dict[str, float], denominator: float, counts: frozenset[str]) -> dict[str, float]:
    """A global batch's metrics: sums divided as the gradient was, counts as they are. Over a denominator of 0 (every row masked) nothing has a mean:
    the averages are absent, for absent is never 0."""
    means = {name: value / denominator for name, value in sums.items() if name not in counts} if denominator else {}
    return means | {name: value for name, value in sums.items() if name in counts}
