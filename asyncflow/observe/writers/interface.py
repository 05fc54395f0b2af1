"""The interface of a writer. One of your own is a class with these three methods, a factory, and `observe.writers: ["package.module:factory"]`.

A writer lives in the launcher, in a thread of its own. It may be slow, it may raise and it may hang: the run neither waits for it nor ends for it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from asyncflow.config import RunConfig
from asyncflow.observe.records import StepRecord, Summary, TimelineRecord


class WriterContext(msgspec.Struct, frozen=True):
    """What a writer is made from."""

    config: RunConfig
    run_dir: Path  # it may make a folder of its own in here
    say: Callable[[str], None]  # one line to the person at the terminal; may be called from the writer's thread


class MetricsWriter(Protocol):
    """Called by one thread only, which also made it. Whatever it raises disables it and is shown once."""

    def step(self, record: StepRecord) -> None:
        """One commit. None in the record means not measured: leave it out, never write 0."""

    def evaluation(self, version: int, accuracy: float, t_s: float) -> None:
        """A version's share of held-out items answered right; it comes after later steps. `t_s`: seconds since the controller's start."""

    def close(self, summary: Summary | None) -> None:
        """The last call. None: the run left no summary."""


@runtime_checkable
class WorkerTimeWriter(Protocol):
    """What a writer has too that wants to know how the workers spend their time."""

    def worker_time(self, record: TimelineRecord) -> None:
        """What one worker did since its record before."""


WriterFactory = Callable[[WriterContext], MetricsWriter]
