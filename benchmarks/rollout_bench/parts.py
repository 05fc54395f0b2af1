"""The rows of the benchmark: sides take turns in one run, and each rate is a median."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import msgspec

from benchmarks.harness import Row, compared
from benchmarks.queue_bench.asking import Asked
from benchmarks.queue_bench.measure import Parts, alternate
from benchmarks.rollout_bench.run import Run, Turn
from benchmarks.rollout_bench.scope import Scope, make_model, plain

START_S = 600.0  # of vLLM
WORKER, UPDATED = 0.95, 0.85  # goals, of the bare engine's rate
WARMUPS = 1
OTHERS = 1 << 20  # first of the prompts that no other side gets: the worker's engine may have cached those


def throughput(scope: Scope) -> Iterator[Row]:
    """Worker and bare engine get the same prompts; while one has its turn the other is idle."""
    turns: dict[str, list[Turn]] = {"worker": [], "updated": []}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncflow-rollout-")))
        parameters = make_model(scope, folder / "model")
        bare = stack.enter_context(Asked("benchmarks.rollout_bench.bare", env={"OMP_NUM_THREADS": "1"}))
        bare.ask("start", timeout_s=START_S, folder=str(folder / "model"), scope=plain(scope))
        run = Run(stack, scope, folder / "model", folder)
        numbers = {name: count(first) for name, first in (("bare", 0), ("worker", 0), ("updated", OTHERS))}

        def plainly() -> Parts:
            return _rate("bare", msgspec.convert(bare.ask("turn", timeout_s=START_S, number=next(numbers["bare"])) | {"versions": 1}, Turn))

        def side(name: str, every_s: float | None) -> Parts:
            turns[name].append(run.turn(next(numbers[name]), every_s))
            return _rate(name, turns[name][-1])

        sides = {"bare": plainly, "worker": lambda: side("worker", None), "updated": lambda: side("updated", scope.every_s)}
        found = alternate(scope.repeats, sides, warmups=WARMUPS)
    yield from _rows(scope, parameters, found, turns)


def _rate(name: str, turn: Turn) -> Parts:
    print(f"{name}: {turn.tokens} tokens in {turn.seconds:.1f} s, {turn.versions} versions", file=sys.stderr, flush=True)
    return {"rate": turn.tokens / turn.seconds}


def _rows(scope: Scope, parameters: int, found: dict[str, float], turns: dict[str, list[Turn]]) -> Iterator[Row]:
    last = turns["worker"][-1]
    rows = f"{scope.groups} × {scope.rows} rows of {last.tokens / last.rows:.0f} tokens a turn"
    what = f"{parameters / 1e6:.0f} M parameters, {scope.slots} slots, {rows}"
    yield compared("rollout worker", found["worker rate"], "tokens/s", found["bare rate"], at_least=WORKER, note=what)
    updated = turns["updated"][WARMUPS:]
    loads, seconds = sum(turn.versions - 1 for turn in updated), sum(turn.seconds for turn in updated)
    how = f"{loads} loads in {seconds:.0f} s; the reference has none"
    name = f"rollout worker, an update every {scope.every_s:g} s"
    yield compared(name, found["updated rate"], "tokens/s", found["bare rate"], at_least=UPDATED, note=how)
