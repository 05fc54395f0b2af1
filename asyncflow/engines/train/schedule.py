"""The learning rate as a function of the step: linear warm-up, then constant, linear or cosine down to a tenth of the peak."""

from __future__ import annotations

import math

from asyncflow.config.algorithm import AlgorithmSettings

FLOOR = 0.1  # of the peak: the rate a decaying schedule ends at


def learning_rate(settings: AlgorithmSettings, step: int, total_steps: int) -> float:
    """Rate of step `step` (0-based) of `total_steps`; beyond the end, that of the last step."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.learning_rate
    course = max(1, total_steps - 1 - settings.warmup_steps)
    progress = min(1.0, (step - settings.warmup_steps) / course)
    left = 1.0 - progress if settings.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return settings.learning_rate * (FLOOR + (1.0 - FLOOR) * left)
