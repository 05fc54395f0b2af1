"""Writers of a user's own, each with one way to live or fail."""

from __future__ import annotations

import threading

import msgspec

from asyncflow.observe.records import StepRecord, Summary, TimelineRecord
from asyncflow.observe.writers.interface import WriterContext


class Plain:
    """Keeps what it gets as lines of a file."""

    def __init__(self, context: WriterContext) -> None:
        self._path = context.run_dir / "plain.txt"
        self._lines: list[str] = []

    def step(self, record: StepRecord) -> None:
        self._lines.append(f"step {record.version}")

    def evaluation(self, version: int, accuracy: float, t_s: float) -> None:
        self._lines.append(f"evaluation {version} {accuracy} {t_s}")

    def close(self, summary: Summary | None) -> None:
        self._lines.append("closed" if summary is None else f"closed {summary.exit_reason}")
        self._path.write_text("\n".join(self._lines))


class Timed(Plain):
    """Wants to know of the workers' time too."""

    def worker_time(self, record: TimelineRecord) -> None:
        self._lines.append(f"time {record.member}")


class Hanging(Plain):
    """Never comes back from its first step."""

    def step(self, record: StepRecord) -> None:
        threading.Event().wait()


class Raising(Plain):
    """Raises at version 2."""

    def step(self, record: StepRecord) -> None:
        super().step(record)
        if record.version == 2:
            raise ConnectionError("the service is down\nand stays so")


class Exiting(Plain):
    """Ends the program, as a careless library does."""

    def step(self, record: StepRecord) -> None:
        raise SystemExit(3)


class Words(msgspec.Struct):
    """What was said to the person at the terminal."""

    lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)
