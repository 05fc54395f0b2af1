"""A process with an engine that decodes: prints the ids of all processes under it, then decodes until it is killed. `python owner.py FOLDER`"""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
from vllm_harness import load, qwen2, sampled, start_engine


def main(folder: str) -> None:
    engine = start_engine(Path(folder), qwen2(0), tensor_parallel=2)
    load(engine, qwen2(1))
    engine.generate([sampled(f"r{i}", (3, 4, 5), seed=i, tokens=100) for i in range(500)])
    engine.chunks(wait_s=60.0)
    print("PIDS", *(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
    while True:
        engine.chunks(wait_s=1.0)


if __name__ == "__main__":
    main(sys.argv[1])
