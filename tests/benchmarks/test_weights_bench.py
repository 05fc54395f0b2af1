"""The benchmark of weights: its payload, its memory watch, and the whole of it in small."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import run

import msgspec
import numpy as np
import pytest
import torch

from benchmarks.harness import Row
from benchmarks.quiet import judged
from benchmarks.weights_bench.limits import Copies
from benchmarks.weights_bench.parts import Peak
from benchmarks.weights_bench.payload import Model, raw

ROOT = Path(__file__).parents[2]
SMALL = Model(vocabulary=50, hidden=8, key_value=4, feed_forward=16, layers=2)


def test_the_default_model_has_the_size_it_says() -> None:
    assert len(Model().shapes()) == 290
    assert Model().nbytes == 988_065_536
    tensors = SMALL.tensors(seed=3)
    assert sum(tensor.nbytes for tensor in tensors.values()) == SMALL.nbytes
    assert all(np.array_equal(raw(tensor), raw(again)) for tensor, again in _twice(SMALL))


def _twice(model: Model) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(model.tensors(seed=3).values(), model.tensors(seed=3).values(), strict=True))


def test_the_limits_copy_every_byte() -> None:
    parts = [raw(tensor) for tensor in SMALL.tensors(seed=0).values()]
    copies = Copies(parts)
    copies.into_warm_shared_memory()
    assert copies._warm is not None
    assert all(np.array_equal(part, place) for part, place in zip(parts, copies._warm.arrays, strict=True))
    copies.into_fresh_pages_with_digest()


def eventually(holds: Callable[[], bool], what: str, deadline_s: float = 10.0) -> None:
    end, pause = time.monotonic() + deadline_s, threading.Event()
    while not holds():
        assert time.monotonic() < end, what
        pause.wait(0.01)


def test_the_memory_watch_sees_a_peak_that_has_gone_again() -> None:
    with Peak([os.getpid()]) as peak:
        data = np.ones(64 << 20, dtype=np.uint8)
        eventually(lambda: peak.growth_mib > 60, what="it was looked at")
        del data
    assert 60 < peak.growth_mib < 80


def test_what_is_not_timed_is_claimed_on_a_busy_machine_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.quiet.others_share", lambda: 0.9)
    row = Row(name="x", value=1.0, unit="ms", goal=2.0, met=True)
    assert judged(lambda: [row], is_quick=False, timed=False) == [row]
    assert [found.met for found in judged(lambda: [row], is_quick=False, timed=True)] == [None]
    assert [found.note for found in judged(lambda: [row], is_quick=True, timed=False)] == ["not claimed: --quick"]


@pytest.mark.tools
def test_the_quick_benchmark_of_weights_measures_every_row_on_real_processes_and_claims_nothing(tmp_path: Path) -> None:
    file = tmp_path / "weights.json"
    done = run([sys.executable, "benchmarks/weights.py", "--quick", "--json", str(file)], cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    rows = [msgspec.convert(row, Row) for row in msgspec.json.decode(file.read_bytes())["rows"]]
    assert len(rows) == 8
    assert all(row.value is not None and row.value >= 0 and row.met is None for row in rows)
    ways = [row.note for row in rows if "receiver" in row.name and "memory" in row.name]
    assert ["by_pull_shared 10" in way for way in ways] == [True, False, False]
