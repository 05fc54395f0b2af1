"""A run as plain lines, for a file, a pipe, or a terminal that cannot show more: one line when something new is there, at most every ten seconds."""

from __future__ import annotations

import time

from asyncflow.observe.records import StepRecord

LINE_S = 10.0  # between two lines


class Lines:
    """Says which line is due."""

    def __init__(self, total_steps: int) -> None:
        self._total = total_steps
        self._printed_s = time.monotonic()
        self._version: int | None = None

    def due(self, step: StepRecord | None) -> str | None:
        """The line for the newest step, when it is new and its time has come; the last step's is always due."""
        if step is None or step.version == self._version:
            return None
        if time.monotonic() - self._printed_s < LINE_S and step.version != self._total:
            return None
        self._printed_s, self._version = time.monotonic(), step.version
        return f"version {step.version}/{self._total} at {step.t_s:.1f} s: {describe(step)}"


def describe(step: StepRecord) -> str:
    """The numbers of one step that a person follows."""
    busy = " ".join(f"{role} {share['busy']:.0%}" for role, share in step.shares.items() if role in ("rollout", "trainer"))
    return f"reward {number(step.reward_mean)} staleness {number(step.staleness_mean)} max {number(step.staleness_max)} busy {busy or '?'}"


def number(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f}"
