"""`WriterFeed`: brings what the run's files say to every writer. With no writer configured it costs nothing: no thread, no file is opened."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from asyncflow.observe.live.news import RunNews
from asyncflow.observe.records import Summary
from asyncflow.observe.writers.background import BackgroundWriter, Item

LOOK_S = 0.5  # the recorder brings its lines to disk as often


class WriterFeed:
    """A context manager; `close` hands over the summary. Leaving it without `close` (the run never ended) closes the writers without one."""

    def __init__(self, run_dir: Path, writers: Sequence[BackgroundWriter], close_s: float) -> None:
        """`close_s`: how long `close` waits for all writers together."""
        self._news = RunNews(run_dir)
        self._writers, self._close_s = list(writers), close_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writers", daemon=True)

    def close(self, summary: Summary | None) -> None:
        """After the run: everything recorded goes out, then the summary. Says what could not be written."""
        if self._over.is_set() or not self._writers:
            return
        self._over.set()
        deadline = time.monotonic() + self._close_s
        self._thread.join(self._close_s)  # it reads what is left; it never waits for a writer
        for writer in self._writers:
            writer.finish(summary)
        for writer in self._writers:
            writer.wait(deadline)

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            self._pass_on()
        while self._pass_on():  # the files are whole now
            pass

    def _pass_on(self) -> bool:
        """One look at the files. False: nothing new."""
        news = self._news.look()
        items: list[Item] = [*news.steps, *news.evaluations, *news.times]
        for item in items:
            for writer in self._writers:
                writer.offer(item)
        return bool(news)

    def __enter__(self) -> WriterFeed:
        if self._writers:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(None)
