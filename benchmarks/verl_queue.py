"""verl's own V1 trainer over our queue and over TransferQueue 0.1.11, taking turns: `.venv-verl/bin/python benchmarks/verl_queue.py --json FILE`.

Needs what `make venv-verl` sets up. See benchmarks/README.md for what is measured how.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, Python knows only this folder

from benchmarks.harness import Results, Row, arguments, compared, finish, machine
from benchmarks.quiet import judged
from tests.verl.timed_queue import WAITING, queue_seconds, step_seconds
from tests.verl.v1_run import figures, trained
from tests.verl.v1_settings import V1

QUEUES = ("ours", "baseline")
ON_THE_WAY = ("TaskRunnerV1", "WorkerDict")  # whose seconds are the step's; agent loops write beside it


@dataclass
class Run:
    """Figures of the measured steps of one run, in order."""

    step_s: list[float]
    tokens: list[int]
    queue_s: list[float]

    @classmethod
    def read(cls, asked: V1, first: int, last: int) -> Run:
        found = figures(asked.metrics)
        tokens = dict(zip(found["steps"], found["tokens"], strict=True))
        times = queue_seconds(asked.times, first, last)
        calls = [spent for role in ON_THE_WAY for call, spent in times.get(role, {}).items() if call not in WAITING]
        if not calls:
            raise ValueError(f"{asked.times}: no call of {', '.join(ON_THE_WAY)} from step {first} to {last}: the run was not timed")
        queue_s = [sum(step) for step in zip(*calls, strict=True)]
        return cls(step_seconds(asked.times, first, last), [tokens[step] for step in range(first, last + 1)], queue_s)


def rows(runs: dict[str, list[Run]]) -> Iterator[Row]:
    """Medians over the measured steps of all runs of a queue."""
    medians = {queue: _medians(runs[queue]) for queue in QUEUES}
    ours, theirs = medians["ours"], medians["baseline"]
    note = f"medians of {sum(len(run.step_s) for run in runs['ours'])} steps in {len(runs['ours'])} runs each"
    yield compared("V1 step", ours["tokens_per_s"], "tokens/s", theirs["tokens_per_s"], at_least=1.0, note=note)
    yield compared("in the queue", ours["queue_s"], "s a step", theirs["queue_s"], note=f"of {' and '.join(ON_THE_WAY)}, without polling")
    yield compared("share of the step", ours["share"], "", theirs["share"])


def _medians(runs: list[Run]) -> dict[str, float]:
    steps = [step for run in runs for step in zip(run.step_s, run.tokens, run.queue_s, strict=True)]
    return {
        "tokens_per_s": statistics.median(tokens / step_s for step_s, tokens, _ in steps),
        "queue_s": statistics.median(queue_s for _, _, queue_s in steps),
        "share": statistics.median(queue_s / step_s for step_s, _, queue_s in steps),
    }


def measured(first: int, last: int, rounds: int, mode: str, folder: Path, limit_s: float) -> Iterator[Row]:
    runs: dict[str, list[Run]] = {queue: [] for queue in QUEUES}
    for turn in range(rounds):
        for queue in QUEUES[:: 1 - 2 * (turn % 2)]:  # who goes first takes turns, too
            out = folder / f"{turn}-{queue}"
            asked = V1(mode, last + 1, queue, "asyncflow", out, out / "checkpoints", timed=True)
            trained(asked, limit_s)
            runs[queue].append(Run.read(asked, first, last))
    yield from rows(runs)


def main() -> None:
    parser = arguments(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=2, help="runs over each queue")
    parser.add_argument("--mode", default="separate_async")
    parser.add_argument("--keep", type=Path, help="a folder for what the runs write")
    parser.add_argument("--limit-s", type=float, default=300.0, help="of one run")
    args = parser.parse_args()
    first, last, rounds = (2, 3, 1) if args.quick else (10, 30, args.rounds)
    results = Results(rows=[], machine=machine())
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        results.add(*judged(lambda: measured(first, last, rounds, args.mode, folder.resolve(), args.limit_s), is_quick=args.quick, timed=True))
    finish(results, args.json)


if __name__ == "__main__":
    main()
