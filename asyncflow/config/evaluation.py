"""Settings of evaluation: when, on how many held-out items."""

from __future__ import annotations

from asyncflow.config.settings import Settings

MOST_ITEMS = 1 << 14  # requests that the embedded engine queues; an evaluation hands all of its items over at once


class EvaluationSettings(Settings, frozen=True):
    """Greedy accuracy on held-out items. Version 0 and the last version are always evaluated where `every` is not null."""

    every: int | None = 50  # Versions between two evaluations; null: none at all.
    items: int = 512  # Held-out items in each evaluation, 1 to 16384.
