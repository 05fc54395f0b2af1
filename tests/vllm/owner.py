"""A process whose engine has two worker processes that share a tied model: checks its tokens after two loads, prints the ids of all processes
under it, then decodes until it is killed. `python owner.py FOLDER`"""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
from vllm_harness import check_new_weights, llama, sampled, start_engine


def main(folder: str) -> None:
    engine = start_engine(Path(folder), llama(0, tied=True), tensor_parallel=2)
    for seed in (3, 4):
        check_new_weights(engine, llama(seed, tied=True))
    engine.generate([sampled(f"r{i}", (3, 4, 5), seed=i, tokens=100) for i in range(500)])
    engine.chunks(wait_s=60.0)
    print("PIDS", *(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
    while True:
        engine.chunks(wait_s=1.0)


if __name__ == "__main__":
    main(sys.argv[1])
