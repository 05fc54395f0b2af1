"""`python -m tests.launch.program FOLDER`: a launcher in a process of its own. Its last line is the exit reason."""

from __future__ import annotations

import sys
from pathlib import Path

from asyncflow.launch import forkserver
from tests.launch.runs import launcher, run_config


class Aloud(list[str]):
    """Prints what is said."""

    def append(self, line: str) -> None:
        print(line, flush=True)


if __name__ == "__main__":
    forkserver.preload = lambda config: ["tests.launch.workers", "asyncflow.launch.controller"]  # these workers need no torch
    print(launcher(run_config(Path(sys.argv[1])), {"rollout-0": ("loyal", True, ()), "trainer-0": ("loyal", False, ())}, Aloud()).run(), flush=True)
