"""Weights & Biases. Everything but the project is told to it as its users do, by its own variables (WANDB_MODE=offline, WANDB_ENTITY, …)."""

from __future__ import annotations

import msgspec
import wandb

from asyncflow.observe.records import StepRecord, Summary
from asyncflow.observe.writers.interface import WriterContext
from asyncflow.observe.writers.scalars import ACCURACY, scalars

VERSION = "version"  # the axis of every chart: an evaluation comes after later steps, which wandb's own step counter does not allow


class WandbWriter:
    """One run of ours is one run of theirs, its files in RUN/wandb."""

    def __init__(self, context: WriterContext) -> None:
        """Raises what `wandb.init` raises."""
        config = context.config
        quiet = wandb.Settings(silent=True, console="off")  # the terminal is the view's, and standard output stays ours
        wandb.setup(settings=quiet)  # without it, one who has not logged in would be asked for a key, in the middle of the view
        self._run = wandb.init(
            project=config.observe.wandb_project,
            name=context.run_dir.name,
            dir=str(context.run_dir),
            config=msgspec.to_builtins(config),
            settings=quiet,
        )
        self._run.define_metric(VERSION, hidden=True)
        self._run.define_metric("*", step_metric=VERSION)
        context.say(f"wandb: {f'offline, in {context.run_dir}/wandb' if self._run.offline else self._run.url}")

    def step(self, record: StepRecord) -> None:
        self._run.log({VERSION: record.version, **scalars(record)})

    def evaluation(self, version: int, accuracy: float, t_s: float) -> None:
        self._run.log({VERSION: version, ACCURACY: accuracy})

    def close(self, summary: Summary | None) -> None:
        """Brings everything out; a run that did not complete is marked as failed there too."""
        if summary is not None:
            self._run.summary.update({f"run/{name}": value for name, value in msgspec.to_builtins(summary).items() if value is not None})
        self._run.finish(exit_code=0 if summary is not None and summary.exit_reason == "completed" else 1)


def make(context: WriterContext) -> WandbWriter:
    """For `observe.writers: [wandb]`."""
    return WandbWriter(context)
