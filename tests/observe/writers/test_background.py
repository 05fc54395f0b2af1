"""A writer that raises, hangs or crawls costs the run nothing, and the person is told."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import pytest

from asyncflow.observe.live.news import Evaluation
from asyncflow.observe.summary import summarise
from asyncflow.observe.writers.background import BackgroundWriter
from asyncflow.observe.writers.feed import WriterFeed
from asyncflow.observe.writers.interface import MetricsWriter, WriterContext
from tests.observe.live.run_files import append, evaluated, joined, run_config, spent, step
from tests.observe.writers.own import Exiting, Hanging, Plain, Raising, Timed, Words


def context(folder: Path, words: Words) -> WriterContext:
    config = run_config(folder)
    return WriterContext(config=config, run_dir=config.run_dir, say=words.say)


def background(folder: Path, kind: type[Plain], words: Words, bound: int = 1024) -> BackgroundWriter:
    made = context(folder, words)
    return BackgroundWriter("mine", lambda: kind(made), words.say, folder / "writer.log", bound)


def test_records_arrive_in_order_and_the_summary_last(tmp_path: Path) -> None:
    words = Words()
    writer = background(tmp_path, Plain, words)
    for item in (step(1), Evaluation(0, 0.0, 1.5), step(2)):
        writer.offer(item)
    writer.finish(summarise(tmp_path, "completed", 1.0, {}))
    writer.wait(time.monotonic() + 10)
    assert (tmp_path / "run/plain.txt").read_text().splitlines() == ["step 1", "evaluation 0 0.0 1.5", "step 2", "closed completed"]
    assert words.lines == []


def test_a_writer_that_raises_is_named_once_and_disabled(tmp_path: Path) -> None:
    words = Words()
    writer = background(tmp_path, Raising, words)
    for version in range(1, 1000):
        writer.offer(step(version))
    writer.finish(None)
    writer.wait(time.monotonic() + 10)
    log = tmp_path / "writer.log"
    assert words.lines == [
        f"writer mine failed and is disabled, the run goes on: ConnectionError: the service is down; traceback: {log}",
    ]
    assert "raise ConnectionError" in log.read_text()
    assert writer.failed
    assert writer.dropped == 0  # nobody was too slow


def test_a_writer_that_cannot_be_made_or_ends_the_program_is_disabled_too(tmp_path: Path) -> None:
    def broken() -> MetricsWriter:
        raise OSError(28, "No space left on device")

    words = Words()
    unmade = BackgroundWriter("broken", broken, words.say, tmp_path / "broken.log")
    exiting = background(tmp_path, Exiting, words)
    for writer in (unmade, exiting):
        writer.offer(step(1))
        writer.finish(None)
        writer.wait(time.monotonic() + 10)
        assert writer.failed
    assert ["No space left" in words.lines[0], "SystemExit: 3" in words.lines[1], len(words.lines)] == [True, True, 2]


def test_a_writer_that_hangs_delays_neither_the_records_nor_the_end(tmp_path: Path) -> None:
    words = Words()
    writer = background(tmp_path, Hanging, words, bound=16)
    begun_s = time.monotonic()
    for version in range(1, 1001):
        writer.offer(step(version))
    assert time.monotonic() - begun_s < 1.0
    writer.finish(None)
    writer.wait(time.monotonic() + 0.2)
    assert time.monotonic() - begun_s < 5.0
    left, dropped = words.lines
    assert "mine did not finish within observe.writer_close_s" in left
    assert re.search("with 1[56] records unwritten", left)
    assert f"{writer.dropped} records were dropped, the oldest first" in dropped
    assert writer.dropped in (983, 984)  # all but the newest 16, and the one that it hangs in if that is none of them


def test_a_slow_writer_loses_the_oldest_and_keeps_the_newest(tmp_path: Path) -> None:
    go = threading.Event()

    class Slow(Plain):
        def step(self, record: object) -> None:
            go.wait(10)
            super().step(record)  # type: ignore[arg-type]

    words = Words()
    writer = background(tmp_path, Slow, words, bound=3)
    for version in range(1, 11):
        writer.offer(step(version))
    go.set()
    writer.finish(None)
    writer.wait(time.monotonic() + 10)
    lines = (tmp_path / "run/plain.txt").read_text().splitlines()
    assert lines[-4:] == ["step 8", "step 9", "step 10", "closed"]
    assert len(lines) - 1 + writer.dropped == 10
    assert writer.dropped in (6, 7)


def test_the_feed_brings_everything_that_was_recorded_also_after_its_last_look(tmp_path: Path) -> None:
    words = Words()
    made = context(tmp_path, words)
    writers = [BackgroundWriter("timed", lambda: Timed(made), words.say, tmp_path / "log")]
    with WriterFeed(made.run_dir, writers, close_s=10) as feed:
        append(made.run_dir, joined("rollout"), step(1))
        append(made.run_dir, step(2), evaluated(0, 0.25, 1.0), spent("rollout", 1.0, 0.0))
        feed.close(summarise(made.run_dir, "interrupted", 1.0, {}))
    lines = (made.run_dir / "plain.txt").read_text().splitlines()
    assert sorted(lines) == ["closed interrupted", "evaluation 0 0.25 1.0", "step 1", "step 2", "time rollout-0#0"]
    assert lines[-1] == "closed interrupted"


def test_a_run_that_raises_closes_its_writers(tmp_path: Path) -> None:
    words = Words()
    made = context(tmp_path, words)
    writers = [BackgroundWriter("plain", lambda: Plain(made), words.say, tmp_path / "log")]
    with pytest.raises(KeyboardInterrupt), WriterFeed(made.run_dir, writers, close_s=10):
        raise KeyboardInterrupt
    assert (made.run_dir / "plain.txt").read_text() == "closed"


def test_without_writers_there_is_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with WriterFeed(tmp_path, [], close_s=10) as feed:
        assert threading.active_count() == before
        feed.close(None)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), GeneratorExit(), BaseException("x"), ValueError("\udcff\n"), ValueError("\n")])
def test_whatever_a_writer_raises_is_told_in_one_line(tmp_path: Path, error: BaseException) -> None:
    class Odd(Plain):
        def evaluation(self, version: int, accuracy: float, t_s: float) -> None:
            raise error

    words = Words()
    writer = background(tmp_path, Odd, words)
    writer.offer(Evaluation(0, 0.0, 1.0))
    writer.finish(None)
    writer.wait(time.monotonic() + 10)
    assert len(words.lines) == 1
    assert words.lines[0].startswith(f"writer mine failed and is disabled, the run goes on: {type(error).__name__}: ")
    assert type(error).__name__ in (tmp_path / "writer.log").read_text()
