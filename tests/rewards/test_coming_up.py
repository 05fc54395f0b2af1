"""A scorer of mathematics comes up outside of every row's time: the tokenizer, the process that compares, and the one that takes its place."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncflow.data import math_parquet
from asyncflow.data.math_parquet import MathParquet
from asyncflow.rewards import math_process
from asyncflow.rewards.deadline import DeadlineScorer
from asyncflow.rewards.verdict import Verdict
from tests.data.math_files import ALPHABET, sums, write_rows, write_tokenizer
from tests.rewards.test_verdict_stage import config_of, made

SLEEP_S = 4.0  # of the process that compares, before it says that it is there
DEADLINE_S = 3.0  # of a row: shorter than that, and enough for any comparison
ITEM = b'{"truths":["1/2"]}'


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python that is started from here sleeps first."""
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "sitecustomize.py").write_text(f"import time; time.sleep({SLEEP_S})")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "late"))


@pytest.fixture
def task(tmp_path: Path) -> Iterator[MathParquet]:
    folder, train = write_tokenizer(tmp_path / "model", ALPHABET + "^"), write_rows(tmp_path / "train.parquet", sums(5))
    task = MathParquet(seed=1, tokenizer=str(folder), train=str(train), prompt_width=16, item_bytes=64)
    yield task
    task.close()


def answered(task: MathParquet, text: str) -> list[int]:
    eos = task.tokenizer.eos_token_id
    assert isinstance(eos, int)
    return [*task.tokenizer.encode(text, add_special_tokens=False), eos]


def test_no_row_pays_for_the_start_of_the_process_that_compares_nor_for_that_of_the_next_one(task: MathParquet, late: None) -> None:
    scorer = DeadlineScorer(task.score, DEADLINE_S)
    response = answered(task, "#### 0.5")
    assert scorer([ITEM, ITEM], [response, answered(task, "#### 0.4")]) == [1.0, 0.0]
    child = task._judge._process._process
    assert child is not None
    child.kill()
    child.wait(10)
    assert scorer([ITEM], [response]) == [1.0]
    assert task._judge._process.pid not in (None, child.pid)
    scorer.close()


def test_a_comparison_that_was_ended_costs_its_own_row_and_the_next_ones_nothing(task: MathParquet, late: None) -> None:
    task.prepare()
    task._judge._process._deadline_s = 1.0
    scorer = DeadlineScorer(task.verdict, DEADLINE_S)
    tower, right = answered(task, "\\boxed{9^{9^{9^{9}}}}"), answered(task, "#### 0.5")
    assert scorer([ITEM, ITEM], [tower, right]) == [float(Verdict.TIMEOUT), float(Verdict.RIGHT)]
    scorer.close()


def test_no_row_pays_for_a_tokenizer_that_is_slow_to_load(task: MathParquet, monkeypatch: pytest.MonkeyPatch) -> None:
    response, load = answered(task, "#### 7"), math_parquet.load_tokenizer
    del task.__dict__["tokenizer"]  # as in a process that has read no file

    def slowly(folder: str) -> object:
        math_process.time.sleep(1.0)
        return load(folder)

    monkeypatch.setattr(math_parquet, "load_tokenizer", slowly)
    assert DeadlineScorer(task.score, 0.5)([b'{"truths":["7"]}'], [response]) == [1.0]


def test_a_process_that_does_not_come_up_ends_the_run_by_name(task: MathParquet, late: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_process, "START_S", 0.3)
    with pytest.raises(RuntimeError, match=r"process that compares answers did not start \(no answer within 0\.3 s\)"):
        DeadlineScorer(task.score, DEADLINE_S)([ITEM], [answered(task, "#### 0.5")])
    assert task._judge._process.pid is None


def test_a_tokenizer_that_never_loads_ends_the_start_by_name(task: MathParquet, monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    monkeypatch.setattr(math_parquet, "load_tokenizer", lambda folder: free.wait(20))
    monkeypatch.setattr(math_parquet, "LOAD_S", 0.3)
    with pytest.raises(TimeoutError, match=r"loading the tokenizer in .*model goes on, and it must be done within 0\.3 s"):
        task.prepare()
    free.set()


def test_a_process_that_never_comes_up_ends_the_start_by_name(task: MathParquet, monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    monkeypatch.setattr(task._judge._process, "_start", lambda: free.wait(20))
    monkeypatch.setattr(math_parquet, "COME_UP_S", 0.3)
    with pytest.raises(TimeoutError, match="starting the process that compares answers goes on"):
        task.prepare()
    free.set()


def test_the_stage_is_made_with_everything_up_and_leaves_nothing(tmp_path: Path) -> None:
    started: list[int | None] = []

    class Seen(math_process.MathProcess):
        def _start(self) -> None:
            super()._start()
            started.append(self.pid)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asyncflow.rewards.math_judge.MathProcess", Seen)
        stage = made(config_of(tmp_path))
    (pid,) = started
    assert pid is not None
    os.kill(pid, 0)
    stage.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
