"""The rows of the benchmark: sides take turns in one run, and each ratio is the median of its pairs of turns."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.harness import Row, compared
from benchmarks.queue_bench.asking import Asked
from benchmarks.rollout_bench.run import Run, Turn
from benchmarks.rollout_bench.scope import Scope, make_model, plain

START_S = 600.0  # of vLLM
WORKER, UPDATED = 0.95, 0.85  # goals, of the bare engine's rate
WARMUPS = 1
SAME = 0.02  # rounding differs with what is decoded beside it, so that now and then a response goes another way
OTHERS = 1 << 20  # first of the prompts that no other side gets: the worker's engine may have cached those


def throughput(scope: Scope) -> Iterator[Row]:
    """Each turn of the worker follows one of the bare engine with the same prompts and seeds; while one has its turn the other is idle."""
    turns: dict[str, list[Turn]] = {"bare": [], "worker": [], "bare again": [], "updated": []}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncflow-rollout-")))
        parameters = make_model(scope, folder / "model")
        bare = stack.enter_context(Asked("benchmarks.rollout_bench.bare", env={"OMP_NUM_THREADS": "1"}))
        bare.ask("start", timeout_s=START_S, folder=str(folder / "model"), scope=plain(scope))
        run = Run(stack, scope, folder / "model", folder)

        def plainly(name: str, first: int) -> None:
            number = first + len(turns[name])
            answer = bare.ask("turn", timeout_s=START_S, number=number, first_gid=run.next_gid)
            _took(turns, name, msgspec.convert(answer | {"versions": 1}, Turn))

        def ours(name: str, first: int, every_s: float | None, before: str) -> None:
            _took(turns, name, run.turn(first + len(turns[name]), every_s))
            _check_same(turns[before][-1], turns[name][-1])

        for _ in range(WARMUPS + scope.repeats):
            plainly("bare", 0)
            ours("worker", 0, None, "bare")
            plainly("bare again", OTHERS)
            ours("updated", OTHERS, scope.every_s, "bare again")
    yield from _rows(scope, parameters, turns)


def _took(turns: dict[str, list[Turn]], name: str, turn: Turn) -> None:
    print(f"{name}: {turn.tokens} tokens in {turn.seconds:.1f} s, {turn.versions} versions", file=sys.stderr, flush=True)
    turns[name].append(turn)


def _check_same(bare: Turn, ours: Turn) -> None:
    """Prompts are work too, so a side with longer responses has less of it a token."""
    if abs(ours.tokens - bare.tokens) > SAME * bare.tokens:
        raise RuntimeError(f"{ours.tokens} tokens of ours against {bare.tokens} for the same prompts and seeds: not the same work, nothing is said")


def _rows(scope: Scope, parameters: int, turns: dict[str, list[Turn]]) -> Iterator[Row]:
    last = turns["worker"][-1]
    rows = f"{scope.groups} × {scope.rows} rows of {last.tokens / last.rows:.0f} tokens a turn"
    what = f"{parameters / 1e6:.0f} M parameters, {scope.slots} slots, {rows}"
    yield _paired("rollout worker", turns["bare"], turns["worker"], WORKER, what)
    updated = turns["updated"][WARMUPS:]
    loads, seconds = sum(turn.versions - 1 for turn in updated), sum(turn.seconds for turn in updated)
    how = f"{loads} loads in {seconds:.0f} s; the reference has none"
    yield _paired(f"rollout worker, an update every {scope.every_s:g} s", turns["bare again"], turns["updated"], UPDATED, how)


def _paired(name: str, bare: list[Turn], ours: list[Turn], at_least: float, note: str) -> Row:
    """The median of the ratios of pairs, for only the two turns of a pair have the same prompts; the rate of ours is a median too."""
    rates = [(own.tokens / own.seconds, other.tokens / other.seconds) for own, other in zip(ours[WARMUPS:], bare[WARMUPS:], strict=True)]
    rate, ratios = median(own for own, _ in rates), [own / other for own, other in rates]
    spread = f"{note}; pairs {min(ratios):.2f} to {max(ratios):.2f}"
    return compared(name, rate, "tokens/s", rate / median(ratios), at_least=at_least, note=spread)
