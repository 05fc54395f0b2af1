"""Which token comes next: an inverse CDF at a random number that is a pure function of (seed, absolute position).

All rows are handled at once and none sees another: every operation is elementwise or runs along one row in a fixed order, in float64 numpy, so a
row's token and the bits of its log-probability do not depend on which slot it sits in or who its neighbours are.
"""

from __future__ import annotations

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


class NonFiniteLogitsError(RuntimeError):
    """The model produced NaN or infinite logits for these requests; nothing was sampled from them."""

    def __init__(self, ids: list[str], version: int) -> None:
        super().__init__(
            f"logits of requests {ids} are not finite under weights version {version}: no token can be sampled, so the engine stops here; "
            "load finite weights into a new engine and look at the trainer's gradients"
        )
        self.ids = ids


def uniforms(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """[S] float64 in [0, 1): splitmix64 of (seed [S] uint64, absolute position [S] int64 of the token to be sampled).

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014); the seed is mixed once before the position is added, so
    that neighbouring seeds do not give shifted copies of one stream.
    """
    state = _mix(seeds.astype(np.uint64)) + positions.astype(np.uint64) * _GOLDEN
    return (_mix(state) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(value: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64; wraps modulo 2**64."""
    value = value + _GOLDEN
    value = (value ^ (value >> np.uint64(30))) * _MIX_1
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    return value ^ (value >> np.uint64(31))


def sample(logits: np.ndarray, temperature: np.ndarray, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [S] int64 and their log-probabilities [S] float32 under softmax(logits / temperature).

    logits [S, V] float, finite; temperature [S] float64 >= 0, where 0 means argmax (the lowest token of a tie) with log-probabilities of
    temperature 1; uniform [S] float64 in [0, 1).
    """
    greedy = temperature == 0.0
    scaled = logits.astype(np.float64)
    scaled /= np.where(greedy, 1.0, temperature)[:, None]
    scaled -= scaled.max(axis=1, keepdims=True)
    cdf = np.cumsum(np.exp(scaled), axis=1)  # sequential along a row, unlike a pairwise sum
    total = cdf[:, -1]
    # For u <= 1 - 2**-53 the rounded product u * total is below total, so a token always exists and it is one with a positive probability.
    tokens = (cdf <= (uniform * total)[:, None]).sum(axis=1)
    if greedy.any():
        tokens = np.where(greedy, logits.argmax(axis=1), tokens)
    chosen = np.take_along_axis(scaled, tokens[:, None], axis=1)[:, 0]
    return tokens, (chosen - np.log(total)).astype(np.float32)
