"""Programs that import verl run in processes of their own: what verl finds out about a machine holds for a process, and Ray leaves much."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "VERL_PLATFORM": "cpu",
    "VERL_LOGGING_LEVEL": "WARN",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_memory_monitor_refresh_ms": "0",  # it kills workers on a machine that others use, too
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}


def run(
    *command: str, limit_s: float = 60.0, environment: Mapping[str, str] | None = None, path: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Python with these arguments and `path` first on its own, to its end. One that does not end is killed: verl waits in C, where no time-out of
    Python's fires."""
    everything = {**os.environ, **ENVIRONMENT, **(environment or {}), "PYTHONPATH": str(path)}
    full = ["timeout", "--kill-after=10", str(limit_s), sys.executable, *command]
    with tempfile.TemporaryDirectory(prefix="v") as folder:
        return subprocess.run(full, cwd=folder, env=everything, capture_output=True, text=True, timeout=limit_s + 30)


def said(code: str, limit_s: float = 60.0, **environment: str) -> str:
    """What `code` prints last. Fails the test where it raises."""
    done = run("-c", code, limit_s=limit_s, environment=environment)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
    return done.stdout.splitlines()[-1] if done.stdout else ""


def error_of(code: str, limit_s: float = 60.0, **environment: str) -> tuple[int, str]:
    """(exit status, the end of stderr) of `code`."""
    done = run("-c", code, limit_s=limit_s, environment=environment)
    return done.returncode, done.stderr[-3000:]
