"""Where the stored length traces come from: `python -m asyncflow.sizing.draw TABLE.yaml` draws the table's trace again from its law and seed.

They are stored because a simulation must not change when numpy changes its generators.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from asyncflow.sizing.costs import Lengths

STORED = 1 << 16  # lengths of a stored trace: 32 batches of 128 × 16


def draw(law: Lengths, count: int) -> np.ndarray:
    """`count` lengths, int64, each in [1, cap]: a draw beyond the cap is cut there, as a token limit cuts a response."""
    if law.law == "constant":
        return np.full(count, round(law.mean), dtype=np.int64)
    mu = fitted_mu(law.mean, law.sigma, law.cap)
    drawn = np.exp(mu + law.sigma * np.random.default_rng(law.seed).standard_normal(count))
    return np.minimum(np.ceil(drawn), law.cap).astype(np.int64)


def fitted_mu(mean: float, sigma: float, cap: float) -> float:
    """Mean of the logarithm for which the lognormal, cut at `cap`, has this mean. Bisection: the cut mean rises with it. Requires mean < cap."""
    low, high = -math.log(cap) - 50.0, math.log(cap) + 10.0 * (sigma + 1.0)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if cut_mean(middle, sigma, cap) < mean else (low, middle)
    return low


def cut_mean(mu: float, sigma: float, cap: float) -> float:
    """E[min(X, cap)] of a lognormal X."""
    if sigma == 0:
        return min(math.exp(mu), cap)
    z = (math.log(cap) - mu) / sigma
    return math.exp(mu + sigma * sigma / 2) * _normal(z - sigma) + cap * (1 - _normal(z))


def _normal(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def main(tables: list[str]) -> None:
    from asyncflow.sizing.load import load_costs

    for table in tables:
        law = load_costs(table).lengths
        assert law.trace is not None, f"{table} names no trace"
        np.save(law.trace, draw(law, STORED).astype(np.uint16))
        print(law.trace)


if __name__ == "__main__":
    main(sys.argv[1:])
