"""What one optimizer step saw: staleness per token, rewards, lengths, versions. Numbers travel with the commit into metrics.jsonl."""

from __future__ import annotations

import numpy as np

from asyncflow.algorithms.metrics import averages
from asyncflow.contracts.batch import StageBatch
from asyncflow.observe.tally import Tally
from asyncflow.rewards.verdict import VERDICT, counted


class StepMetrics:
    """Accumulates over the micro-batches of one step. Staleness of a token = version before the update − version that made it, in versions."""

    def __init__(self, step: int, counts: frozenset[str]) -> None:
        """`counts`: sums of the loss that are counts (`Loss.counts`)."""
        self._step, self._counts = step, counts
        self._staleness = Tally()
        self._rewards: list[np.ndarray] = []
        self._lengths: list[np.ndarray] = []
        self._verdicts: list[np.ndarray] = []  # stays empty where the trainer reads none
        self._mixed_rows = 0
        self._sums: dict[str, float] = {}

    def absorb(self, batch: StageBatch, sums: dict[str, float]) -> None:
        versions = batch.jagged("token_versions")
        self._staleness.add(self._step - versions.values.astype(np.int64))
        self._rewards.append(np.asarray(batch.scalar("rewards"), dtype=np.float64))
        self._lengths.append(versions.lengths)
        if VERDICT in batch.columns:
            self._verdicts.append(batch.scalar(VERDICT))
        self._mixed_rows += int((batch.oldest_versions != batch.newest_versions).sum())
        for name, value in sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    @property
    def rows(self) -> int:
        return sum(map(len, self._rewards))

    def summary(self, denominator: float) -> dict[str, float]:
        """One flat record. Sums of the loss are divided by `denominator`, as the gradient was; with 0 they have no mean and are absent."""
        rewards, lengths = map(np.concatenate, (self._rewards, self._lengths))
        numbers = {
            "rows": float(self.rows),
            "tokens": float(lengths.sum()),
            "reward_mean": float(rewards.mean()),
            "reward_std": float(rewards.std()),
            "response_tokens_mean": float(lengths.mean()),
            "response_tokens_p5": float(np.percentile(lengths, 5)),
            "response_tokens_p95": float(np.percentile(lengths, 95)),
            "staleness_mean": self._staleness.mean(),
            "staleness_p95": self._staleness.percentile(95),
            "staleness_max": self._staleness.max(),
            "staleness_min": self._staleness.min(),
            "mixed_version_rows": float(self._mixed_rows),
        }
        if self._verdicts:
            numbers |= counted(np.concatenate(self._verdicts))
        return numbers | averages(self._sums, denominator, self._counts)
