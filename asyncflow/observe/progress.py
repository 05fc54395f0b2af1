"""What a person sees while a run goes on: a bar in a terminal, plain lines elsewhere. Read off metrics.jsonl, so it shows what was recorded."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import TracebackType

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from asyncflow.observe.records import METRICS, StepRecord

LINE_S = 10.0  # between two plain lines


class MetricsTail:
    """New whole lines of a growing metrics.jsonl."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def newest(self) -> StepRecord | None:
        """The last whole line since the call before; None: nothing new."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return None
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        lines = whole.splitlines()
        return msgspec.json.decode(lines[-1], type=StepRecord) if lines else None


class LastingConsole(Console):
    """Whoever reads our output may go (`| head`, a lost ssh line): then it goes nowhere, and the run goes on."""

    def on_broken_pipe(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class RunProgress:
    """A context manager. `say` prints one line; `tick` looks for news, as often as its caller likes."""

    def __init__(self, run_dir: Path, total_steps: int, console: Console | None = None) -> None:
        self.console = console or LastingConsole(highlight=False, soft_wrap=True)
        self._tail = MetricsTail(run_dir / METRICS)
        self._total = total_steps
        self._printed_s = time.monotonic()
        self._bar: Progress | None = None
        if self.console.is_terminal:
            columns = (TextColumn("version"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f} {task.description}"))
            self._bar = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=self.console, transient=True)
            self._task = self._bar.add_task("", total=total_steps)

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    def tick(self) -> None:
        """Show the newest step, if there is one."""
        step = self._tail.newest()
        if step is None:
            return
        if self._bar is not None:
            self._bar.update(self._task, completed=step.version, description=describe(step))
        elif time.monotonic() - self._printed_s >= LINE_S or step.version == self._total:
            self._printed_s = time.monotonic()
            self.say(f"version {step.version}/{self._total} at {step.t_s:.1f} s: {describe(step)}")

    def __enter__(self) -> RunProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()


def describe(step: StepRecord) -> str:
    """The numbers of one step that a person follows."""
    busy = " ".join(f"{role} {share['busy']:.0%}" for role, share in step.shares.items() if role in ("rollout", "trainer"))
    return f"reward {_number(step.reward_mean)} staleness {_number(step.staleness_mean)} max {_number(step.staleness_max)} busy {busy or '?'}"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f}"
