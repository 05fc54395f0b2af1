"""verl's own V1 trainer, unmodified, on a tiny model and the CPU: `python -m tests.verl.v1_run --mode sync --steps 3 --queue baseline --out FOLDER`.

Makes the model and the data, starts `verl.trainer.main_ppo` with what a CPU needs, and prints one JSON line: the steps, the reward and the seconds of
each, whose `transfer_queue` it was, and what the run left behind. `--queue baseline`: the real TransferQueue 0.1.11, in the folder that
make venv-verl puts it in, and nothing of our plugin but the platform; `ours`: the transfer_queue of this project.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

from tests.verl.leftovers import abandoned, end, remove, segments
from tests.verl.tiny import make_tiny
from tests.verl.v1_settings import ENGINES, V1, environment, make_data, overrides

METRICS = {
    "steps": "training/global_step",
    "rewards": "critic/rewards/mean",
    "step_s": "timing_s/step",
    "tokens": "perf/total_num_tokens",
    "staleness": "training/off_policy/trajectory_staleness_worst/max",
}


def figures(metrics: Path) -> dict[str, list[Any]]:
    """One entry for each step that was trained."""
    entries = [json.loads(line)["data"] for line in metrics.read_text().splitlines()]
    trained = [entry for entry in entries if METRICS["rewards"] in entry]
    return {name: [entry.get(key) for entry in trained] for name, key in METRICS.items()}


def trained(asked: V1, limit_s: float = 500.0, more: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run it to its end, as `run_verl`; what it trained."""
    ask = [sys.executable, "-c", "from importlib.util import find_spec; print(find_spec('transfer_queue').origin)"]
    asked.out.mkdir(parents=True, exist_ok=True)
    everything = environment(asked, "")
    whose = subprocess.run(ask, env=everything, cwd=asked.out, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    killed = run_verl(asked, limit_s, more)
    return {"transfer_queue": whose, **figures(asked.metrics), "killed": list(killed.values())}


def run_verl(asked: V1, limit_s: float, more: tuple[str, ...] = ()) -> dict[int, str]:
    """Raises RuntimeError with what it said last; whatever happens, none of its processes lives on. Returns those that had to be killed."""
    for folder in (asked.out, asked.checkpoints, asked.times):
        folder.mkdir(parents=True, exist_ok=True)
    model, data = make_tiny(asked.out / "model"), make_data(asked.out)
    mark, before = uuid.uuid4().hex, segments()
    everything = environment(asked, mark)
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as temporary:
        settings = [*overrides(asked, model, data, temporary), *more]
        command = ["timeout", "--kill-after=20", str(limit_s), sys.executable, "-m", "verl.trainer.main_ppo", *settings]
        everything["TMPDIR"] = temporary  # vLLM leaves a file there, too
        try:
            with asked.log.open("w") as log:
                status = subprocess.run(command, env=everything, cwd=asked.out, stdout=log, stderr=subprocess.STDOUT, timeout=limit_s + 60).returncode
        finally:
            killed = end(mark)
            remove(abandoned(before))  # vLLM leaves two for each replica, and a semaphore
    if status:
        raise RuntimeError(f"verl ended with {status}; see {asked.log}\n{_complaints(asked.log)}")
    return killed


def _complaints(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if re.search(r"\w(Error|Exception)\b", line)]
    return "\n".join(lines[-8:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="sync")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--queue", choices=["baseline", "ours"], default="baseline")
    parser.add_argument("--engine", choices=sorted(ENGINES), default="asyncflow", help="of separate_async")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--checkpoints", type=Path, help="where it saves; without it: in --out")
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--timed", action="store_true")
    parser.add_argument("--limit-s", type=int, default=500)
    parser.add_argument("more", nargs="*", help="further settings of verl, KEY=VALUE")
    given = parser.parse_args()
    out = given.out.resolve()
    checkpoints = (given.checkpoints or out / "checkpoints").resolve()
    asked = V1(given.mode, given.steps, given.queue, given.engine, out, checkpoints, given.save_every, given.resume, given.timed)
    try:
        print(json.dumps(trained(asked, given.limit_s, tuple(given.more))))
    except RuntimeError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
