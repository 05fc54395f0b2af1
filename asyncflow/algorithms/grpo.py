"""Group-relative advantages: a sample is as good as it beats the other samples of its prompt (GRPO, Shao et al. 2024, arXiv:2402.03300).

numpy only: the process that computes them needs no torch.
"""

from __future__ import annotations

import numpy as np

DEGENERATE = 1e-6  # a group whose rewards spread less than this has nothing to compare


def group_advantages(rewards: np.ndarray, gids: np.ndarray, *, normalise_std: bool) -> np.ndarray:
    """Reward minus its group's mean, divided by the group's standard deviation if `normalise_std`.

    `rewards` [R] float, `gids` [R] int with rows of a group adjacent; returns [R] float32. Degenerate groups (all rewards alike, or one row) get 0.
    Raises ValueError for a reward that is not finite: a missing reward is never read as a number.
    """
    if not np.isfinite(rewards).all():
        row = int(np.flatnonzero(~np.isfinite(rewards))[0])
        raise ValueError(f"reward of group {gids[row]} is {rewards[row]}: a missing reward has no advantage; the batch is refused; mend the scorer")
    values = rewards.astype(np.float64)
    starts, inverse, counts = _groups(gids)
    means = np.add.reduceat(values, starts) / counts
    centred = values - means[inverse]
    spread = np.sqrt(np.add.reduceat(centred**2, starts) / counts)  # population standard deviation
    alike = spread < DEGENERATE
    scale = np.where(alike, 0.0, 1.0 / np.where(alike, 1.0, spread) if normalise_std else 1.0)
    return (centred * scale[inverse]).astype(np.float32)


def _groups(gids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(first row, group number of each row, size) of runs of equal gids. Raises ValueError when a group is in two pieces."""
    if not len(gids):
        raise ValueError("advantages of no rows were asked for; a group has at least one row; lease whole groups")
    starts = np.flatnonzero(np.concatenate([[True], gids[1:] != gids[:-1]]))
    if len(np.unique(gids)) != len(starts):
        raise ValueError(f"rows of a group are not adjacent in gids {gids.tolist()[:16]}…: means would be of parts of groups; sort the rows by group")
    counts = np.diff(np.append(starts, len(gids)))
    return starts, np.repeat(np.arange(len(starts)), counts), counts
