"""How near weights on their way come to what the machine can do: `python benchmarks/weights.py --json FILE`.

Publisher, trainer and receivers are processes of their own; limits are measured in the same run, taking turns with ours. See benchmarks/README.md for
what is measured how.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, Python knows only this folder

from benchmarks.harness import Results, Row, arguments, finish, machine
from benchmarks.quiet import judged
from benchmarks.weights_bench import parts
from benchmarks.weights_bench.payload import Model

FULL = parts.Scope(Model(), repeats=7)
QUICK = parts.Scope(Model(vocabulary=2000, hidden=64, key_value=32, feed_forward=128, layers=2), repeats=2)
PARTS: dict[str, Callable[[parts.Scope], Iterator[Row]]] = {
    "blocked": parts.trainer_blocked,
    "joiner": parts.joiner,
    "broadcast": parts.broadcast,
    "memory": parts.memory,
}
UNTIMED = {"memory"}


def main() -> None:
    parser = arguments(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part of it, may be given several times; without it: all")
    args = parser.parse_args()
    results, scope = Results(rows=[], machine=machine()), QUICK if args.quick else FULL
    for name in args.only or PARTS:
        results.add(*judged(lambda name=name: PARTS[name](scope), is_quick=args.quick, timed=name not in UNTIMED))
    finish(results, args.json)


if __name__ == "__main__":
    main()
