"""A task that a model of random weights learns in thirty steps: digits, and nothing else, in as many places as a response has at most."""

from __future__ import annotations

from typing import Any

PLACES = 16


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> float:
    return min(1.0, sum(letter.isdigit() for letter in solution_str) / PLACES)
