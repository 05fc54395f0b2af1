"""What the rollout worker leaves of vLLM's speed: `.venv-vllm/bin/python benchmarks/rollout.py --json FILE`.

The worker of a real run, with queue, controller, publisher and row writer, against a bare `AsyncLLM` over the same prompts, taking turns. See
benchmarks/README.md for what is measured how.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, Python knows only this folder

from asyncflow.engines.model import ModelShape
from benchmarks.harness import Results, arguments, finish, machine
from benchmarks.quiet import judged
from benchmarks.rollout_bench.parts import throughput
from benchmarks.rollout_bench.scope import Scope

LARGE = ModelShape(vocab_size=16_384, hidden_size=512, intermediate_size=1536, layers=14, heads=8, head_dim=64, max_positions=128)
SMALL = ModelShape(vocab_size=512, hidden_size=64, intermediate_size=96, layers=2, heads=2, head_dim=32, max_positions=64)
FULL = Scope(LARGE, slots=32, groups=16, rows=8, prompt_tokens=64, response_tokens=64, stops=256, repeats=5, every_s=1.0)
QUICK = Scope(SMALL, slots=8, groups=12, rows=4, prompt_tokens=32, response_tokens=32, stops=16, repeats=2, every_s=0.1)


def main() -> None:
    parser = arguments(__doc__.splitlines()[0] if __doc__ else "")
    args = parser.parse_args()
    if find_spec("vllm") is None:
        parser.error("vLLM is not installed in this environment, so there is nothing to measure; make venv-vllm, and use its python")
    results, scope = Results(rows=[], machine=machine()), QUICK if args.quick else FULL
    results.add(*judged(lambda: throughput(scope), is_quick=args.quick, timed=True))
    finish(results, args.json)


if __name__ == "__main__":
    main()
