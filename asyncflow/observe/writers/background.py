"""`BackgroundWriter`: somebody's writer behind a bounded queue, so that it can neither end nor slow the run."""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from asyncflow.observe.live.news import Evaluation
from asyncflow.observe.records import StepRecord, Summary, TimelineRecord
from asyncflow.observe.writers.interface import MetricsWriter, WorkerTimeWriter

BOUND = 1024  # records that wait for a slow writer; beyond it the oldest go

Item = StepRecord | Evaluation | TimelineRecord
Say = Callable[[str], None]


class BackgroundWriter:
    """Makes its writer in its own thread (joining a service may take long), then hands it one record after another."""

    def __init__(self, name: str, make: Callable[[], MetricsWriter], say: Say, log: Path, bound: int = BOUND) -> None:
        """`log` gets the traceback of what the writer raises."""
        self.name = name
        self.dropped = 0  # records that the writer was too slow for
        self.failed = False  # it raised, and gets nothing any more
        self._make, self._say, self._log, self._bound = make, say, log, bound
        self._items: deque[Item] = deque()
        self._summary: Summary | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"writer {name}", daemon=True)  # one that hangs must not keep the process
        self._thread.start()

    def offer(self, item: Item) -> None:
        """Returns at once. The oldest record makes room where there is none."""
        with self._changed:
            if self.failed:
                return
            if len(self._items) >= self._bound:
                self._items.popleft()
                self.dropped += 1
            self._items.append(item)
            self._changed.notify()

    def finish(self, summary: Summary | None) -> None:
        """No more records come. Returns at once; see `wait`."""
        with self._changed:
            self._summary, self._closing = summary, True
            self._changed.notify()

    def wait(self, deadline: float) -> None:
        """Until it has written everything, at most until `deadline` (time.monotonic). Says what was lost."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            with self._changed:
                left = len(self._items)
            self._say(f"writer {self.name} did not finish within observe.writer_close_s; it was left behind with {left} records unwritten")
        if self.dropped:
            self._say(f"writer {self.name} was too slow for the run: {self.dropped} records were dropped, the oldest first")

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            writer = self._make()
            for item in self._waiting():
                hand_over(writer, item)
            writer.close(self._summary)
        except BaseException as error:  # somebody else's code may raise anything; the run goes on, and the person is told once
            self._disable(error)

    def _waiting(self) -> Iterator[Item]:
        """Records as they come, until `finish`."""
        while True:
            with self._changed:
                # without a deadline: `offer` or `finish` comes, else the process ends and the thread with it
                self._changed.wait_for(lambda: self._items or self._closing)
                if not self._items:
                    return
                item = self._items.popleft()
            yield item

    def _disable(self, error: BaseException) -> None:
        with self._changed:
            self.failed = True
            self._items.clear()
        reason = words[0] if (words := str(error).splitlines()) else "no message"
        try:
            self._log.write_text("".join(traceback.format_exception(error)), encoding="utf-8", errors="backslashreplace")
            where = f"; traceback: {self._log}"
        except OSError:
            where = ""
        self._say(f"writer {self.name} failed and is disabled, the run goes on: {type(error).__name__}: {reason}{where}")


def hand_over(writer: MetricsWriter, item: Item) -> None:
    """One record to the method that takes it."""
    if isinstance(item, StepRecord):
        writer.step(item)
    elif isinstance(item, Evaluation):
        writer.evaluation(item.version, item.accuracy, item.t_s)
    elif isinstance(writer, WorkerTimeWriter):
        writer.worker_time(item)
