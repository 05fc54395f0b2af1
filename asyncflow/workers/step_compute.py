"""What one optimizer step costs: its micro-batches come one by one, with waits for data between them, and only the computing counts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from asyncflow.workers.context import WorkerContext


class StepCompute:
    """One step: `tokens` (prompt and response, all micro-batches) and `seconds` of computing, the optimizer's included."""

    def __init__(self, context: WorkerContext) -> None:
        self._clock = context.clock
        self.tokens, self.seconds = 0, 0.0

    @contextmanager
    def part(self, tokens: int) -> Iterator[None]:
        """A micro-batch of so many tokens; 0 for the optimizer's part."""
        start_s = time.perf_counter()
        with self._clock.during("busy", "compute"):
            yield
        self.tokens += tokens
        self.seconds += time.perf_counter() - start_s
